// A parameter server's side of the protocol with a DBW controller: what to send, and which k to use, whatever fails.
//
// This has no socket, timer or clock: dbw_job.ts sends what it returns, hands in what it receives, and tells the time, in
// seconds on any monotonic clock. tests/conversations/ shows it at work, in scripts that conversation_test.ts runs.
import { status } from "@grpc/grpc-js";
import type { CreateJobRequest } from "./build/types/dbw/v1/CreateJobRequest.js";
import type { Decision__Output } from "./build/types/dbw/v1/Decision.js";
import type { IterationSummary } from "./build/types/dbw/v1/IterationSummary.js";
import type { JobSpec } from "./build/types/dbw/v1/JobSpec.js";

export type Fallback = "last" | "all"; // k without a controller: the last one that was decided, or all workers
export type Link =
  | "attaching"
  | "attached"
  | "down" // the last attempt to attach has failed, or took too long
  | "replaced" // another process has created the same job: there are no decisions until that one has gone
  | "taken"; // another identity has a job of this name: there are no decisions until that is gone
export type Decision = Pick<Decision__Output, "iteration" | "k" | "deadlineSeconds">;
// A job as `GetJob` shows it: when it has changed last, in seconds on the controller's clock, and where it is.
export type Look = { updated: number; iteration: number };
export type Workers = number | number[]; // how many are alive, or their numbers
export type Summary = Omit<IterationSummary, "iteration" | "fallback" | "previousK"> & {
  k?: number; // how many gradients were averaged; by default the k that was to be waited for
  durationSeconds?: number; // when the wait was over; by default with the k-th arrival
};
export type Batch = { iteration: number; preceding: number; seconds: number[]; workers: number[] };
export type Membership = { liveWorkers: number; workers: number[] };
export type EndedIteration = {
  arrivals: Batch[];
  summary: Summary & {
    iteration: number;
    k: number;
    fallback: boolean;
    previousK?: number;
    decisionIteration?: number;
  };
};
export type Request = EndedIteration & {
  job: string;
  session: string;
  preceding: EndedIteration[];
  membership?: Membership;
};

const REMEMBERED_ITERATIONS = 1024; // arrivals of those further back are ignored
// Iterations to report later, while there is no answer: together they must fit into one message, in which a batch of
// arrivals takes the room of some arrivals.
const [MAX_ITERATIONS, MAX_ROWS, BATCH_ROWS] = [256, 50_000, 12];
// How long an iteration waits for its decision, in seconds and as a share of the last one's time.
const [DEADLINE, MIN_PATIENCE, PATIENCE_SHARE] = [1, 0.001, 0.05];
// Exponential backoff: after n timed-out waits in a row, skip waiting for the next 2^n - 1 requests, at most this many.
const MAX_SKIPPED_WAITS = 63;
// A controller that leaves a request unanswered for longer than both has stopped answering: seconds, and a multiple of
// what its last answer took.
const [SILENT_SECONDS, SILENT_FACTOR] = [10, 5];
// Nobody uses a job that has not changed for this many seconds, and this many iterations of either process.
const [SILENT_JOB_SECONDS, SILENT_JOB_ITERATIONS] = [60, 5];
// Why a request would be refused again; error.proto says which code means what.
const REFUSALS = [status.INVALID_ARGUMENT, status.RESOURCE_EXHAUSTED, status.FAILED_PRECONDITION, status.INTERNAL];

export class DbwConversation {
  k: number; // how many gradients to wait for in this iteration
  decision?: Decision; // in use, for this iteration or an earlier one; nothing while on fallback
  patience = DEADLINE; // how long to wait for the decision for this iteration, at most
  link: Link = "attaching";
  problem?: string; // with the connection
  session = ""; // empty before the first one
  private membership: Membership;
  private knownMembership?: Membership; // which the controller was sent last
  private resetJob = true; // whether the next CreateJob moves the job to `iteration`
  private previousK?: number;
  private readonly arrivalTimes = new Map<number, number[]>(); // of each of the last iterations
  private readonly unsent = new Map<number, Batch>();
  private unacknowledged: EndedIteration[] = []; // which the controller has perhaps not been told of
  private inFlight?: Request; // the request that has no answer yet
  private newest?: Decision; // the newest that was received; nothing once the controller is lost
  private awaited = true; // whether the decision for this iteration was requested, and it has not begun
  private beganAt = 0; // when this iteration began
  private sentAt = 0; // when the request in flight was sent
  private answerSeconds = 0; // how long the last answer took
  private detachedAt = -Infinity; // when the connection ended
  private timedOutWaits = 0; // in a row
  private skippedWaits = 0; // how many of the next requests are not waited for
  private iterationSeconds = 0; // that the last iteration took
  // While the job is another process's:
  private replacedIn = 0; // the iteration that was under way when it became that
  private seen?: Look; // when the job was last found changed
  private seenAt = 0;
  private otherIterationSeconds = 0; // that iterations of that process take

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

  // Whether the job is somebody else's, as far as is known.
  get isOthers(): boolean {
    return this.link === "replaced" || this.link === "taken";
  }

  // Whether to wait for a decision, for `patience` seconds at most: nothing says that it will not come in time.
  get awaitsDecision(): boolean {
    return this.awaited && (this.link === "attaching" || this.link === "attached");
  }

  // What attaches to the job, for the first time or again.
  createRequest(): CreateJobRequest & { membership: Membership } {
    this.knownMembership = this.membership;
    const { job, spec, membership, iteration } = this;
    return { job, spec, membership, ...(this.resetJob && { iteration }) };
  }

  // Takes in a session; returns the request to repeat, if there is one.
  created(now: number, session: string, decision?: Decision | null): Request | undefined {
    [this.session, this.sentAt] = [session, now];
    [this.link, this.problem] = ["attached", undefined];
    if (this.resetJob && decision) this.receive(decision);
    this.resetJob = false;
    if (this.inFlight) this.inFlight = { ...this.inFlight, session, membership: this.changedMembership };
    return this.inFlight;
  }

  // An attempt to attach, or a request, has failed with a status code of gRPC, or without one.
  failed(now: number, code: status | undefined, problem: string): void {
    if (code === status.PERMISSION_DENIED) {
      [this.link, this.problem, this.resetJob] = ["taken", problem, true];
      return;
    }
    if (this.link === "replaced") return this.loseSight(); // nobody knows what the other process does meanwhile
    this.problem = problem;
    const wasAttached = this.link === "attached"; // otherwise CreateJob is what failed
    if (code === status.ABORTED) {
      [this.link, this.replacedIn, this.resetJob] = ["replaced", this.iteration, true];
      this.loseSight();
    } else if (wasAttached) [this.link, this.detachedAt] = ["attaching", now];
    else if (this.link === "attaching") this.link = "down";
    if (!wasAttached || !this.inFlight || code === undefined || !REFUSALS.includes(code)) return;
    this.acknowledge(this.inFlight); // it would be refused again
    [this.inFlight, this.newest, this.awaited] = [undefined, undefined, false];
    if (code === status.FAILED_PRECONDITION) this.resetJob = true; // the job is one of an earlier training
  }

  // Whether to create the job again that another process has taken over: that has gone, and this one trains. `job` is
  // the job as it is now, nothing if there is none.
  mayTakeBack(job: Look | undefined, now: number): boolean {
    if (this.link !== "replaced") return false;
    const trains = this.iteration > this.replacedIn;
    if (!job) return trains;
    if (job.updated !== this.seen?.updated) {
      if (this.seen) {
        const iterations = Math.max(job.iteration - this.seen.iteration, 1);
        const seconds = (job.updated - this.seen.updated) / iterations;
        this.otherIterationSeconds = Math.max(this.otherIterationSeconds, seconds);
      }
      [this.seen, this.seenAt] = [job, now];
      return false;
    }
    const silence = SILENT_JOB_ITERATIONS * Math.max(this.iterationSeconds, this.otherIterationSeconds);
    return trains && now - this.seenAt >= Math.max(SILENT_JOB_SECONDS, silence);
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

  // How long an iteration has taken by its summary: until the k-th arrival, if it does not say anything else.
  durationSeconds(fields: Summary): number {
    const times = this.arrivalTimes.get(this.iteration) ?? [];
    return fields.durationSeconds ?? times[Math.min(fields.k ?? this.k, times.length) - 1] ?? 0;
  }

  // Ends the current iteration; returns the request to send, or nothing while there is no connection, or while an
  // earlier one has no answer.
  endIteration(fields: Summary, now: number): Request | undefined {
    const { iteration, previousK, job, session } = this;
    const k = fields.k ?? this.k;
    const used = this.decision?.iteration;
    const summary = {
      ...fields,
      iteration,
      k,
      durationSeconds: this.durationSeconds(fields),
      previousK,
      fallback: !this.decision,
      decisionIteration: used === iteration ? undefined : used,
    };
    const ended = { arrivals: [...this.unsent.values()], summary };
    this.unacknowledged = newest([...this.unacknowledged, ended]);
    this.unsent.clear();
    this.previousK = k;
    this.iteration++;
    this.arrivalTimes.delete(this.iteration - REMEMBERED_ITERATIONS);
    this.iterationSeconds = now - this.beganAt;
    this.patience = Math.min(Math.max(PATIENCE_SHARE * this.iterationSeconds, MIN_PATIENCE), DEADLINE);
    if (this.link === "attached" && this.inFlight) return undefined;
    // Where there is no connection, it is sent as soon as there is one.
    const preceding = this.unacknowledged.slice(0, -1);
    this.inFlight = { job, session, preceding, ...ended, membership: this.changedMembership };
    this.sentAt = now;
    [this.awaited, this.skippedWaits] = [this.skippedWaits === 0, Math.max(this.skippedWaits - 1, 0)];
    return this.link === "attached" ? this.inFlight : undefined;
  }

  // Takes in an answer. One that comes when its iteration has begun serves the next one.
  decided(decision: Decision, now: number): void {
    const request = this.inFlight;
    if (!request || decision.iteration !== request.summary.iteration + 1) return;
    [this.inFlight, this.answerSeconds] = [undefined, now - this.sentAt];
    this.acknowledge(request);
    this.knownMembership = request.membership ?? this.knownMembership;
    this.receive(decision);
  }

  // Stops waiting for a decision; returns the k to use in this iteration.
  beginIteration(now: number): number {
    if (this.awaitsDecision) {
      // The wait has timed out.
      this.timedOutWaits++;
      this.skippedWaits = Math.min(2 ** this.timedOutWaits - 1, MAX_SKIPPED_WAITS);
    }
    [this.awaited, this.beganAt] = [false, now];
    if (this.link === "attaching" && now - this.detachedAt >= DEADLINE) this.link = "down";
    const patience = Math.max(SILENT_SECONDS, SILENT_FACTOR * this.answerSeconds);
    const silent = this.link === "attached" && this.inFlight !== undefined && now - this.sentAt > patience;
    if (silent || this.link === "down" || this.isOthers) this.newest = undefined;
    this.decision = this.newest;
    if (this.decision) return (this.k = Math.max(Math.min(this.decision.k, this.liveWorkers), 1));
    this.problem ??= "the controller does not answer";
    return (this.k = this.fallback === "last" ? Math.min(this.k, this.liveWorkers) : this.liveWorkers);
  }

  private get liveWorkers(): number {
    return Math.max(this.membership.liveWorkers, 1);
  }

  private get changedMembership(): Membership | undefined {
    const isKnown = JSON.stringify(this.knownMembership) === JSON.stringify(this.membership);
    return isKnown ? undefined : this.membership;
  }

  private receive(decision: Decision): void {
    [this.newest, this.problem] = [decision, undefined];
    if (decision.iteration === this.iteration && this.awaited) [this.awaited, this.timedOutWaits] = [false, 0];
  }

  private loseSight(): void {
    [this.seen, this.otherIterationSeconds] = [undefined, 0];
  }

  // What a request has reported need not be reported again.
  private acknowledge({ summary }: Request): void {
    this.unacknowledged = this.unacknowledged.filter((ended) => ended.summary.iteration > summary.iteration);
  }
}

function membershipOf(workers: Workers): Membership {
  return typeof workers === "number"
    ? { liveWorkers: workers, workers: [] }
    : { liveWorkers: workers.length, workers };
}

// The newest iterations that fit into one message together, and at least one.
function newest(ended: EndedIteration[]): EndedIteration[] {
  let [rows, first] = [0, ended.length];
  while (first > 0 && ended.length - first < MAX_ITERATIONS) {
    for (const batch of ended[first - 1]!.arrivals) rows += BATCH_ROWS + batch.seconds.length;
    if (rows > MAX_ROWS && first < ended.length) break;
    first--;
  }
  return ended.slice(first);
}
