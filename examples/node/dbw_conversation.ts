// A parameter server's side of the protocol with a DBW controller: what to send, and which k to use, whatever fails.
//
// This has no socket, timer or clock: dbw_job.ts sends what it returns, and hands in what it receives.
// tests/conversations/ shows it at work, in scripts that conversation_test.ts runs.
import { status } from "@grpc/grpc-js";
import type { CreateJobRequest } from "./build/types/dbw/v1/CreateJobRequest.js";
import type { Decision__Output } from "./build/types/dbw/v1/Decision.js";
import type { IterationSummary } from "./build/types/dbw/v1/IterationSummary.js";
import type { JobSpec } from "./build/types/dbw/v1/JobSpec.js";

export type Fallback = "last" | "all"; // k without a decision: the last one that was decided, or all workers
export type Link =
  | "attaching"
  | "attached"
  | "down" // the last attempt to attach has failed, or took too long
  | "replaced"; // another process has created the same job: there will be no more decisions
export type Decision = Pick<Decision__Output, "iteration" | "k" | "deadlineSeconds">;
export type Workers = number | number[]; // how many are alive, or their numbers
export type Summary = Omit<IterationSummary, "iteration" | "fallback" | "previousK"> & {
  k?: number; // how many gradients were averaged; by default the k that was to be waited for
  durationSeconds?: number; // when the wait was over; by default with the k-th arrival
};
export type Batch = { iteration: number; preceding: number; seconds: number[]; workers: number[] };
export type Membership = { liveWorkers: number; workers: number[] };
export type Request = {
  job: string;
  session: string;
  arrivals: Batch[];
  summary: Summary & { iteration: number; k: number; fallback: boolean; previousK?: number };
  membership?: Membership;
};

const REMEMBERED_ITERATIONS = 1024; // arrivals of those further back are ignored
// Arrivals to keep while there is no controller: together they must fit into one message.
const [MAX_BATCHES, MAX_ROWS] = [256, 50_000];
// Why a request would be refused again; error.proto says which code means what.
const REFUSALS = [status.INVALID_ARGUMENT, status.RESOURCE_EXHAUSTED, status.FAILED_PRECONDITION, status.INTERNAL];

export class DbwConversation {
  k: number; // how many gradients to wait for in this iteration
  decision?: Decision; // for this iteration; nothing while on fallback
  link: Link = "attaching";
  problem?: string; // with the connection
  private session = "";
  private membership: Membership;
  private knownMembership?: Membership; // which the controller was sent last
  private resetJob = true; // whether the next CreateJob moves the job to `iteration`
  private previousK?: number;
  private readonly arrivalTimes = new Map<number, number[]>(); // of each of the last iterations
  private readonly unsent = new Map<number, Batch>();
  private unacknowledged: Batch[] = []; // sent, but perhaps not received
  private inFlight?: Request; // the request that has no answer yet
  private requested = true; // whether its answer, or that to CreateJob, is the decision for this iteration
  private begun = false; // whether k is in use already

  constructor(
    private readonly job: string,
    private readonly spec: JobSpec,
    workers: Workers,
    public iteration = 0,
    private readonly fallback: Fallback = "last",
  ) {
    this.membership = membershipOf(workers);
    this.k = this.liveWorkers;
  }

  // Whether to wait for a decision: it was requested, and nothing says that it will not come.
  get awaitsDecision(): boolean {
    const connected = this.link === "attaching" || this.link === "attached";
    return !this.decision && this.requested && !this.begun && connected;
  }

  // What attaches to the job, for the first time or again.
  createRequest(): CreateJobRequest & { membership: Membership } {
    this.knownMembership = this.membership;
    const { job, spec, membership, iteration } = this;
    return { job, spec, membership, ...(this.resetJob && { iteration }) };
  }

  // Takes in a session; returns the request to repeat, if there is one.
  created(session: string, decision?: Decision | null): Request | undefined {
    this.session = session;
    [this.link, this.problem] = ["attached", undefined];
    if (this.resetJob && decision) this.take(decision);
    this.resetJob = false;
    if (this.inFlight) this.inFlight = { ...this.inFlight, session, membership: this.changedMembership };
    return this.inFlight;
  }

  // An attempt to attach, or a request, has failed with a status code of gRPC, or without one.
  failed(code: status | undefined, problem: string): void {
    this.problem = problem;
    if (code === status.ABORTED) this.link = "replaced";
    else if (this.link === "attached") this.link = "attaching";
    else if (this.link === "attaching") this.link = "down";
    if (!this.inFlight || code === undefined || !REFUSALS.includes(code)) return;
    this.forgetArrivals(this.inFlight);
    [this.inFlight, this.requested] = [undefined, false];
    if (code === status.FAILED_PRECONDITION) this.resetJob = true; // the job is one of an earlier training
  }

  // A gradient of this or an earlier iteration's parameters arrived, `seconds` after those were published.
  arrived(iteration: number, worker: number, seconds: number): void {
    const times = this.arrivalTimes.get(iteration) ?? [];
    const batch = this.unsent.get(iteration) ?? { iteration, preceding: times.length, seconds: [], workers: [] };
    times.push(seconds);
    batch.seconds.push(seconds);
    batch.workers.push(worker);
    this.arrivalTimes.set(iteration, times);
    this.unsent.set(iteration, batch);
  }

  // Workers came or went.
  setWorkers(workers: Workers): void {
    this.membership = membershipOf(workers);
    this.k = Math.min(this.k, this.liveWorkers);
  }

  // Ends the current iteration; returns the request to send, or nothing while there is no connection, or while an
  // earlier one has no answer.
  endIteration(fields: Summary): Request | undefined {
    const { iteration, previousK, job, session } = this;
    const times = this.arrivalTimes.get(iteration) ?? [];
    const k = fields.k ?? this.k;
    const durationSeconds = fields.durationSeconds ?? times[Math.min(k, times.length) - 1];
    const summary = { ...fields, iteration, k, durationSeconds, previousK, fallback: !this.decision };
    const arrivals = newest([...this.unacknowledged, ...this.unsent.values()]);
    this.unacknowledged = arrivals;
    this.unsent.clear();
    this.previousK = k;
    this.iteration++;
    [this.decision, this.begun] = [undefined, false];
    this.arrivalTimes.delete(this.iteration - REMEMBERED_ITERATIONS);
    this.requested = this.link !== "attached" || !this.inFlight;
    if (!this.requested) return undefined;
    // Where there is no connection, it is sent as soon as there is one.
    this.inFlight = { job, session, arrivals, summary, membership: this.changedMembership };
    return this.link === "attached" ? this.inFlight : undefined;
  }

  // Takes in an answer, which may come too late to be of use.
  decided(decision: Decision): void {
    const request = this.inFlight;
    if (request && decision.iteration === request.summary.iteration + 1) {
      this.inFlight = undefined;
      this.forgetArrivals(request);
      this.knownMembership = request.membership ?? this.knownMembership;
    }
    this.take(decision);
  }

  // Stops waiting for a decision; returns the k to use in this iteration.
  beginIteration(): number {
    this.begun = true;
    if (this.decision) return (this.k = Math.max(Math.min(this.decision.k, this.liveWorkers), 1));
    if (this.link === "attaching") this.link = "down"; // one deadline was enough: the next ones do not wait for it
    this.problem ??= "no answer within the deadline";
    return (this.k = this.fallback === "last" ? Math.min(this.k, this.liveWorkers) : this.liveWorkers);
  }

  private get liveWorkers(): number {
    return Math.max(this.membership.liveWorkers, 1);
  }

  private get changedMembership(): Membership | undefined {
    const isKnown = JSON.stringify(this.knownMembership) === JSON.stringify(this.membership);
    return isKnown ? undefined : this.membership;
  }

  private take(decision: Decision): void {
    if (decision.iteration === this.iteration && !this.begun) [this.decision, this.problem] = [decision, undefined];
  }

  // The arrivals of a request need not be sent again.
  private forgetArrivals({ arrivals }: Request): void {
    this.unacknowledged = this.unacknowledged.filter((batch) => !arrivals.includes(batch));
  }
}

function membershipOf(workers: Workers): Membership {
  return typeof workers === "number"
    ? { liveWorkers: workers, workers: [] }
    : { liveWorkers: workers.length, workers };
}

// The newest arrivals, at most as many as fit into one message.
function newest(batches: Batch[]): Batch[] {
  let [rows, first] = [0, batches.length];
  while (first > 0 && batches.length - first < MAX_BATCHES) {
    rows += batches[first - 1]!.seconds.length;
    if (rows > MAX_ROWS) break;
    first--;
  }
  return batches.slice(first);
}
