// A training job of a DBW controller, from the parameter server's side: how many gradients to wait for.
//
// Copy this file and dbw_conversation.ts:
//
//   const job = await DbwJob.create("127.0.0.1:50051", "resnet", 16, "stream");
//   publish the parameters, and until k gradients are there or the deadline has passed:
//     wait for the next one for job.pauseSeconds(arrived, seconds since then), and for each, late ones as well:
//     job.arrived(iteration of its parameters, worker, seconds since they were published);
//   await job.endIteration(summary);
//
// If the controller is slow, restarted or gone, training goes on with the last k: nothing is thrown, and an iteration
// waits for its decision for 5% of the last one's time, at most. The controller is talked to meanwhile, whenever the loop
// of events is free. This file has the gRPC; what is sent and which k is used is in dbw_conversation.ts.
import { fileURLToPath } from "node:url";
import { type requestCallback, type ServiceError, credentials, loadPackageDefinition, status } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import type { ProtoGrpcType } from "./build/types/controller.js";
import type { ControllerServiceClient } from "./build/types/dbw/v1/ControllerService.js";
import type { CoordinateResponse__Output } from "./build/types/dbw/v1/CoordinateResponse.js";
import type { CreateJobResponse__Output } from "./build/types/dbw/v1/CreateJobResponse.js";
import type { EndIterationResponse__Output } from "./build/types/dbw/v1/EndIterationResponse.js";
import type { GetJobResponse__Output } from "./build/types/dbw/v1/GetJobResponse.js";
import { type Decision, type Request, type Summary, type Workers, DbwConversation } from "./dbw_conversation.js";

const PROTOS = fileURLToPath(new URL("../../../protos", import.meta.url)); // from build/, where this runs
const PATIENCE = 10_000; // milliseconds that a call may take
const PAUSE = 500; // milliseconds, until it is tried again
const [FIRST_LOOK, LONGEST_LOOK] = [30_000, 240_000]; // milliseconds between looks at a job that was taken over
const LONGEST_PAUSE = 1; // seconds, until it is seen that workers were lost

export type Transport = "stream" | "unary";
type Problem = Error & Partial<ServiceError>;

// The job. Without a decision, or without a controller, it is *on fallback*.
export class DbwJob {
  private readonly controller: ControllerServiceClient;
  private readonly conversation: DbwConversation;
  private send: (request: Request) => void = () => {}; // over the connection that there is
  private disconnect: () => void = () => {}; // ends the call under way
  private creation: Promise<unknown> = Promise.resolve(); // CreateJob, of the last attempt to attach
  private answered = false; // whether there was an answer since that attempt
  private wake: () => void = () => {}; // what waits for a decision
  private closing = false;
  private lastDecision?: Decision; // in use, or before the fallback
  private wasOnFallback = false;
  private look = FIRST_LOOK; // milliseconds until the next one
  private stopPause: () => void = () => {};

  // Creates a job, or attaches to the one of this name, for a training that begins with iteration 0.
  static async create(target: string, name: string, workers: number, transport: Transport): Promise<DbwJob> {
    const job = new DbwJob(target, name, workers, transport);
    void job.stayAttached();
    await job.beginIteration();
    return job;
  }

  private constructor(
    target: string,
    private readonly name: string,
    workers: number,
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
      // Pings detect a connection that nothing comes through any more, although nobody has closed it.
      "grpc.keepalive_time_ms": 30_000,
      "grpc.keepalive_timeout_ms": 20_000,
      "grpc.keepalive_permit_without_calls": 1,
    });
    const spec = { policy: { dbw: {} }, syncMode: "SYNC_MODE_PUSH_WAIT" as const };
    const numbers = Array.from({ length: workers }, (_, worker) => worker);
    this.conversation = new DbwConversation(name, spec, numbers);
  }

  // How many gradients to wait for in this iteration.
  get k(): number {
    return this.conversation.k;
  }

  // Whether that is not a decision of the controller.
  get onFallback(): boolean {
    return !this.conversation.decision;
  }

  // When to end the iteration with fewer, or else with the first gradient, in seconds since its parameters were
  // published; nothing: wait for k. On fallback it is the last one: workers may hang without a controller, too.
  get deadlineSeconds(): number | undefined {
    const last = this.lastDecision;
    return last && last.k >= this.k ? last.deadlineSeconds : undefined;
  }

  // How long to wait for the next gradient, in seconds, `elapsed` seconds after the parameters were published. Where none
  // comes in time, look at k again, or end the iteration if this was 0: the deadline has passed.
  pauseSeconds(arrived: number, elapsed: number): number {
    const deadline = arrived > 0 ? this.deadlineSeconds : undefined; // the first one is always waited for
    const left = deadline === undefined ? LONGEST_PAUSE : deadline - elapsed;
    return Math.max(Math.min(left, LONGEST_PAUSE), 0);
  }

  // A gradient of this or an earlier iteration's parameters arrived, `seconds` after those were published.
  arrived(iteration: number, worker: number, seconds: number): void {
    this.conversation.arrived(iteration, worker, seconds);
  }

  // Workers came or went.
  setWorkers(workers: Workers): void {
    this.conversation.setWorkers(workers);
  }

  // The iteration has ended: reports it, and takes the k of the next, if it comes in time.
  async endIteration(summary: Summary): Promise<void> {
    const request = this.conversation.endIteration(summary, now());
    if (request) this.send(request);
    await this.beginIteration();
  }

  // Training is over: the controller may forget the job.
  async delete(): Promise<void> {
    this.closing = true;
    // CreateJob may finish: it has perhaps begun another session already.
    const timer = setTimeout(() => this.disconnect(), PATIENCE);
    await this.creation;
    clearTimeout(timer);
    this.disconnect();
    this.stopPause();
    const request = { job: this.name, session: this.conversation.session, allowMissing: true };
    const options = { deadline: Date.now() + PATIENCE };
    if (!this.conversation.isOthers) {
      await answer((done) => this.controller.deleteJob(request, options, done)).catch((problem) =>
        console.error(`the job cannot be deleted: ${problem.message}`),
      );
    }
    this.controller.close();
  }

  // Waits for the decision, if there is anything to wait for, and begins the next iteration.
  private async beginIteration(): Promise<void> {
    const { conversation } = this;
    const end = now() + conversation.patience;
    for (let left; conversation.awaitsDecision && (left = end - now()) > 0; ) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, 1000 * left!);
        this.wake = () => (clearTimeout(timer), resolve());
      });
    }
    conversation.beginIteration(now());
    this.lastDecision = conversation.decision ?? this.lastDecision;
    if (this.onFallback && !this.wasOnFallback) {
      console.error(`on fallback, k = ${this.k}: ${conversation.problem}`);
    } else if (this.wasOnFallback && !this.onFallback) {
      console.error(`decisions of the controller again, k = ${this.k}`);
    }
    this.wasOnFallback = this.onFallback;
  }

  // Attaches, sends requests, and takes in answers; and again, if that fails.
  private async stayAttached(): Promise<void> {
    const { conversation } = this;
    while (!this.closing) {
      this.answered = false;
      try {
        if (conversation.link !== "replaced" || (await this.mayTakeBack())) await this.attach();
      } catch (error) {
        const { code, message } = error as Problem;
        if (this.closing) return;
        conversation.failed(now(), code, message);
        this.wake();
      }
      this.send = this.disconnect = () => {};
      if (conversation.isOthers) await this.pauseBeforeLook();
      // A connection that has brought an answer is tried again at once.
      else if (!this.answered) await this.pause(PAUSE);
    }
  }

  private pause(milliseconds: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.stopPause = () => (clearTimeout(timer), resolve());
    });
  }

  // Waits longer each time, and not as long as others that lost their jobs at the same time.
  private async pauseBeforeLook(): Promise<void> {
    await this.pause(this.look * (0.5 + Math.random() / 2));
    this.look = Math.min(2 * this.look, LONGEST_LOOK);
  }

  // Looks whether the process that has taken the job over has gone.
  private async mayTakeBack(): Promise<boolean> {
    const options = { deadline: Date.now() + PATIENCE };
    const found = await answer<GetJobResponse__Output>((done) => {
      const call = this.controller.getJob({ job: this.name }, options, done);
      this.disconnect = () => call.cancel();
    }).catch((problem: Problem) => {
      if (problem.code !== status.NOT_FOUND) throw problem;
      return undefined;
    });
    const { updateTime, decision } = found?.job ?? {};
    const updated = Number(updateTime?.seconds ?? 0) + (updateTime?.nanos ?? 0) / 1e9;
    return this.conversation.mayTakeBack(found && { updated, iteration: Number(decision?.iteration ?? 0) }, now());
  }

  // Attaches, and takes in answers until the connection ends, with an error.
  private async attach(): Promise<void> {
    const created = answer<CreateJobResponse__Output>((done) => {
      const request = this.conversation.createRequest();
      const call = this.controller.createJob(request, { deadline: Date.now() + PATIENCE }, done);
      this.disconnect = () => call.cancel();
    });
    this.creation = created.catch(() => undefined);
    const { session, job } = await created;
    const ended = this.transport === "stream" ? this.openStream() : this.prepareCalls();
    this.look = FIRST_LOOK;
    const repeated = this.conversation.created(now(), session, job?.decision);
    if (repeated) this.send(repeated);
    this.wake();
    await ended;
  }

  private openStream(): Promise<void> {
    const call = this.controller.coordinate();
    this.send = (request) => void call.write(request);
    this.disconnect = () => call.cancel();
    return new Promise((_, reject) => {
      call.on("data", ({ decision }: CoordinateResponse__Output) => this.take(decision!));
      call.on("end", () => reject(new Error("the controller has ended the stream")));
      call.on("error", reject);
    });
  }

  private prepareCalls(): Promise<void> {
    return new Promise((_, reject) => {
      this.disconnect = () => reject(new Error("closed"));
      this.send = (request) => {
        const options = { deadline: Date.now() + PATIENCE };
        answer<EndIterationResponse__Output>((done) => this.controller.endIteration(request, options, done)).then(
          ({ decision }) => this.take(decision!),
          reject,
        );
      };
    });
  }

  private take(decision: Decision): void {
    this.conversation.decided(decision, now());
    this.answered = true;
    this.wake();
  }
}

const now = () => performance.now() / 1000;

function answer<T>(call: (done: requestCallback<T>) => unknown): Promise<T> {
  return new Promise((resolve, reject) => call((problem, value) => (problem ? reject(problem) : resolve(value!))));
}
