// A training job of a DBW controller, from the parameter server's side: how many gradients to wait for.
//
// Copy this file:
//
//   const job = await DbwJob.create("127.0.0.1:50051", "resnet", 16, "stream");
//   publish the parameters, wait for job.k gradients, and for each one that arrives, late ones as well:
//     await job.arrived(iteration of its parameters, worker, seconds since they were published);
//   await job.endIteration(summary);
//
// If the controller is slow, restarted or gone, training goes on with the last k: nothing is thrown, and no call takes
// longer than PATIENCE.
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import {
  type requestCallback,
  type ServiceError,
  type StatusObject,
  credentials,
  loadPackageDefinition,
  status,
} from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import type { ProtoGrpcType } from "./build/types/controller.js";
import type { Arrivals } from "./build/types/dbw/v1/Arrivals.js";
import type { ControllerServiceClient } from "./build/types/dbw/v1/ControllerService.js";
import type { CoordinateRequest } from "./build/types/dbw/v1/CoordinateRequest.js";
import type { CoordinateResponse__Output } from "./build/types/dbw/v1/CoordinateResponse.js";
import type { CreateJobResponse__Output } from "./build/types/dbw/v1/CreateJobResponse.js";
import type { EndIterationResponse__Output } from "./build/types/dbw/v1/EndIterationResponse.js";
import type { IterationSummary } from "./build/types/dbw/v1/IterationSummary.js";

const PROTOS = fileURLToPath(new URL("../../../protos", import.meta.url)); // from build/, where this runs
const PATIENCE = 1000; // milliseconds, with a controller that does not answer
const PAUSE = 2000; // milliseconds, until it is tried again
const REMEMBERED = 1024; // iterations; arrivals of those further back are ignored

export type Transport = "stream" | "unary";
type DecisionStream = ReturnType<ControllerServiceClient["coordinate"]>;
type Problem = Error & Partial<ServiceError>;
type Batch = Arrivals & { iteration: number; seconds: number[]; workers: number[] };

// The job. No answer in time, or none at all, and it is *on fallback*.
export class DbwJob {
  k: number; // how many gradients to wait for in this iteration
  onFallback = false; // whether that is not a decision of the controller
  private readonly controller: ControllerServiceClient;
  private stream?: DecisionStream;
  private session = "";
  private attached = false;
  private replaced = false; // by another process that has created the same job
  private nextAttempt = 0; // in milliseconds, because of
  private problem?: Problem;
  private iteration = 0;
  private previousK?: number; // which the controller may have missed
  private arrivals: Batch[] = []; // that the controller does not know of
  private readonly arrivedSoFar = new Map<number, number>(); // in each of the last iterations

  // Creates a job, or attaches to the one of this name, for a training that begins with iteration 0.
  static async create(target: string, name: string, workers: number, transport: Transport): Promise<DbwJob> {
    const job = new DbwJob(target, name, workers, transport);
    job.setFallback(await job.attempt(() => job.attach(Date.now() + PATIENCE)));
    return job;
  }

  private constructor(
    target: string,
    private readonly name: string,
    private readonly workers: number,
    private readonly transport: Transport,
  ) {
    const definition = loadSync("dbw/v1/controller.proto", {
      includeDirs: [PROTOS],
      longs: Number,
      defaults: true,
    });
    const { ControllerService } = (loadPackageDefinition(definition) as unknown as ProtoGrpcType).dbw.v1;
    // With TLS: credentials.createSsl.
    this.controller = new ControllerService(target, credentials.createInsecure(), {
      "grpc.max_reconnect_backoff_ms": 5000,
    });
    this.k = workers;
  }

  // A gradient of this or an earlier iteration's parameters is in, `seconds` after those were published.
  async arrived(iteration: number, worker: number, seconds: number): Promise<void> {
    const preceding = this.arrivedSoFar.get(iteration) ?? 0;
    let batch = this.arrivals.find((batch) => batch.iteration === iteration);
    if (!batch) this.arrivals.push((batch = { iteration, preceding, seconds: [], workers: [] }));
    batch.seconds.push(seconds);
    batch.workers.push(worker);
    this.arrivedSoFar.set(iteration, preceding + 1);
    if (this.transport === "unary" && iteration < this.iteration && this.attached) await this.report();
  }

  // The iteration has ended: says so, and takes the k of the next, if it comes in time.
  async endIteration(told: IterationSummary & { iteration: number; k: number }): Promise<void> {
    const summary = { ...told, fallback: this.onFallback, previousK: this.previousK };
    const deadline = Date.now() + PATIENCE;
    let problem = await this.attempt(() => this.ask(summary, deadline));
    // It was restarted and does not know the session: attach again, and repeat. Nothing counts twice.
    if (problem?.code === status.NOT_FOUND) problem = await this.attempt(() => this.ask(summary, deadline));
    this.setFallback(problem);
    this.arrivals = [];
    this.previousK = told.k;
    this.iteration = told.iteration + 1;
    this.arrivedSoFar.delete(told.iteration - REMEMBERED);
  }

  // Training is over: the controller may forget the job.
  async delete(): Promise<void> {
    this.leaveStream();
    const request = { job: this.name, allowMissing: true };
    const options = { deadline: Date.now() + PATIENCE };
    if (!this.replaced) {
      await answer((done) => this.controller.deleteJob(request, options, done)).catch((problem) =>
        console.error(`the job cannot be deleted: ${problem.message}`),
      );
    }
    this.controller.close();
  }

  private async attach(deadline: number): Promise<void> {
    const workers = Array.from({ length: this.workers }, (_, worker) => worker);
    const begins = !this.session;
    const request = {
      job: this.name,
      spec: { policy: { dbw: {} }, syncMode: "SYNC_MODE_PUSH_WAIT" as const },
      membership: { liveWorkers: this.workers, workers },
      ...(begins && { iteration: this.iteration }), // later the job shall stay where it is
    };
    const created = await answer<CreateJobResponse__Output>((done) =>
      this.controller.createJob(request, { deadline }, done),
    );
    if (begins) this.take(created.job!.decision!.k);
    this.session = created.session;
    this.attached = true;
    this.leaveStream();
  }

  // Sends what has happened, and takes the decision for the next iteration.
  private async ask(summary: IterationSummary, deadline: number): Promise<void> {
    if (!this.attached) await this.attach(deadline);
    const request = { job: this.name, session: this.session, arrivals: this.arrivals, summary };
    const { decision } =
      this.transport === "stream"
        ? await this.askOnStream(request, deadline)
        : await answer<EndIterationResponse__Output>((done) =>
            this.controller.endIteration(request, { deadline }, done),
          );
    this.take(decision!.k);
  }

  private take(k: number): void {
    this.k = Math.min(Math.max(k, 1), this.workers);
  }

  // A gRPC call has one deadline for all of it; on the stream each answer has its own.
  private async askOnStream(request: CoordinateRequest, deadline: number): Promise<CoordinateResponse__Output> {
    const stream = (this.stream ??= this.open());
    stream.write(request);
    const patience = new AbortController();
    // Unlike that of AbortSignal.timeout, this timer keeps the program alive.
    const timer = setTimeout(() => patience.abort(), deadline - Date.now());
    try {
      const [response] = await once(stream, "data", { signal: patience.signal });
      return response;
    } finally {
      clearTimeout(timer);
    }
  }

  private open(): DecisionStream {
    const stream = this.controller.coordinate();
    // It may end at any time, but one that is not in use any more says nothing.
    stream.on("error", (problem: Problem) => stream === this.stream && this.note(problem));
    stream.on("status", ({ code }: StatusObject) => {
      if (code === status.OK) stream.emit("error", new Error("the controller has ended the stream"));
    });
    return stream;
  }

  private leaveStream(): void {
    const stream = this.stream;
    this.stream = undefined;
    stream?.cancel();
  }

  // Late arrivals, as they come. If that fails, they go with the next summary.
  private async report(): Promise<void> {
    const request = { job: this.name, session: this.session, arrivals: this.arrivals };
    const options = { deadline: Date.now() + PATIENCE };
    const problem = await this.attempt(() => answer((done) => this.controller.report(request, options, done)));
    if (!problem) this.arrivals = [];
  }

  // Makes a call, unless it is too early for another one; returns what went wrong.
  private async attempt(call: () => Promise<unknown>): Promise<Problem | undefined> {
    if (this.replaced || Date.now() < this.nextAttempt) return this.problem;
    try {
      await call();
      return undefined;
    } catch (problem) {
      this.note(problem as Problem);
      return problem as Problem;
    }
  }

  // What went wrong says whether and when to call again. A restarted controller can be attached to at once.
  private note(problem: Problem): void {
    this.attached = false;
    if (problem.code === status.ABORTED) this.replaced = true;
    if (problem.code !== status.NOT_FOUND) [this.problem, this.nextAttempt] = [problem, Date.now() + PAUSE];
  }

  private setFallback(problem?: Problem): void {
    if (problem && !this.onFallback) console.error(`on fallback, k = ${this.k}: ${problem.message}`);
    if (!problem && this.onFallback) console.error(`decisions of the controller again, k = ${this.k}`);
    this.onFallback = problem !== undefined;
  }
}

function answer<T>(call: (done: requestCallback<T>) => unknown): Promise<T> {
  return new Promise((resolve, reject) => call((problem, value) => (problem ? reject(problem) : resolve(value!))));
}
