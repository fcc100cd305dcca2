// A training job of a DBW controller, from the parameter server's side: how many gradients to wait for.
//
// Copy this file and dbw_conversation.ts:
//
//   const job = await DbwJob.create("127.0.0.1:50051", "resnet", 16, "stream");
//   publish the parameters, wait for job.k gradients, and for each one that arrives, late ones as well:
//     job.arrived(iteration of its parameters, worker, seconds since they were published);
//   await job.endIteration(summary);
//
// If the controller is slow, restarted or gone, training goes on with the last k: nothing is thrown, and no call takes
// longer than PATIENCE. This file has the gRPC; what is sent and which k is used is in dbw_conversation.ts.
import { fileURLToPath } from "node:url";
import { type requestCallback, type ServiceError, credentials, loadPackageDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import type { ProtoGrpcType } from "./build/types/controller.js";
import type { ControllerServiceClient } from "./build/types/dbw/v1/ControllerService.js";
import type { CoordinateResponse__Output } from "./build/types/dbw/v1/CoordinateResponse.js";
import type { CreateJobResponse__Output } from "./build/types/dbw/v1/CreateJobResponse.js";
import type { EndIterationResponse__Output } from "./build/types/dbw/v1/EndIterationResponse.js";
import { type Request, type Summary, type Workers, DbwConversation } from "./dbw_conversation.js";

const PROTOS = fileURLToPath(new URL("../../../protos", import.meta.url)); // from build/, where this runs
const PATIENCE = 1000; // milliseconds, with a controller that does not answer
const PAUSE = 2000; // milliseconds, until it is tried again

export type Transport = "stream" | "unary";
type Problem = Error & Partial<ServiceError>;

// The stream `Coordinate`. A gRPC call has one deadline for all of it; here each answer has its own.
class DecisionStream {
  private readonly call: ReturnType<ControllerServiceClient["coordinate"]>;
  private readonly answers: AsyncIterator<CoordinateResponse__Output>;

  constructor(controller: ControllerServiceClient) {
    this.call = controller.coordinate();
    this.call.on("error", () => {}); // whenever it fails, the next answer throws it
    this.answers = this.call[Symbol.asyncIterator]();
  }

  // Sends a request, and returns its answer. After a failure the stream is of no more use.
  async ask(request: Request, deadline: number): Promise<CoordinateResponse__Output> {
    this.call.write(request);
    const timer = setTimeout(() => this.call.cancel(), deadline - Date.now());
    try {
      const { done, value } = await this.answers.next();
      if (done) throw new Error("the controller has ended the stream");
      return value;
    } finally {
      clearTimeout(timer);
    }
  }

  cancel(): void {
    this.call.cancel();
  }
}

// The job. No answer in time, or none at all, and it is *on fallback*.
export class DbwJob {
  private readonly controller: ControllerServiceClient;
  private readonly conversation: DbwConversation;
  private stream?: DecisionStream;
  private nextAttempt = 0; // to attach, in milliseconds
  private wasOnFallback = false;

  // Creates a job, or attaches to the one of this name, for a training that begins with iteration 0.
  static async create(target: string, name: string, workers: number, transport: Transport): Promise<DbwJob> {
    const job = new DbwJob(target, name, workers, transport);
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

  // When to end the iteration with fewer, in seconds since its parameters were published, if the controller says so.
  get deadlineSeconds(): number | undefined {
    return this.conversation.decision?.deadlineSeconds;
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
    await this.beginIteration(this.conversation.endIteration(summary));
  }

  // Training is over: the controller may forget the job.
  async delete(): Promise<void> {
    this.stream?.cancel();
    const request = { job: this.name, allowMissing: true };
    const options = { deadline: Date.now() + PATIENCE };
    if (this.conversation.link !== "replaced") {
      await answer((done) => this.controller.deleteJob(request, options, done)).catch((problem) =>
        console.error(`the job cannot be deleted: ${problem.message}`),
      );
    }
    this.controller.close();
  }

  // Attaches where that is needed, sends the request, and takes in the answer; then begins the next iteration. If the
  // connection has ended, or the controller was restarted, it tries once more.
  private async beginIteration(request?: Request): Promise<void> {
    const { conversation } = this;
    const deadline = Date.now() + PATIENCE;
    let due = conversation.link === "down" && Date.now() >= this.nextAttempt;
    for (let attempt = 0; attempt < 2 && (due || conversation.awaitsDecision); attempt++) {
      due = false;
      try {
        request ??= await this.attach(deadline);
        if (request) await this.ask(request, deadline);
        break;
      } catch (error) {
        const problem = error as Problem;
        conversation.failed(problem.code, problem.message);
        request = undefined;
        this.nextAttempt = Date.now() + PAUSE;
      }
    }
    conversation.beginIteration();
    if (this.onFallback && !this.wasOnFallback) {
      console.error(`on fallback, k = ${this.k}: ${conversation.problem}`);
    } else if (this.wasOnFallback && !this.onFallback) {
      console.error(`decisions of the controller again, k = ${this.k}`);
    }
    this.wasOnFallback = this.onFallback;
  }

  private async attach(deadline: number): Promise<Request | undefined> {
    const request = this.conversation.createRequest();
    const { session, job } = await answer<CreateJobResponse__Output>((done) =>
      this.controller.createJob(request, { deadline }, done),
    );
    this.stream?.cancel();
    this.stream = this.transport === "stream" ? new DecisionStream(this.controller) : undefined;
    return this.conversation.created(session, job?.decision);
  }

  private async ask(request: Request, deadline: number): Promise<void> {
    const { decision } = this.stream
      ? await this.stream.ask(request, deadline)
      : await answer<EndIterationResponse__Output>((done) =>
          this.controller.endIteration(request, { deadline }, done),
        );
    this.conversation.decided(decision!);
  }
}

function answer<T>(call: (done: requestCallback<T>) => unknown): Promise<T> {
  return new Promise((resolve, reject) => call((problem, value) => (problem ? reject(problem) : resolve(value!))));
}
