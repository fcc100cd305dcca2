// A parameter server in another language, built from the .proto files alone. Reads {"protos": folder, "target": HOST:PORT,
// "job": name, "iterations": [[seconds, ...], ...]} on standard input: when gradients arrive in every iteration. Runs the
// whole job over one stream, always waiting for as many gradients as decided, and writes the decisions.
import { readFileSync } from "node:fs";
import { once } from "node:events";
import { promisify } from "node:util";
import { credentials, loadPackageDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const input = JSON.parse(readFileSync(0, "utf8"));
const definition = loadSync("dbw/v1/controller.proto", { includeDirs: [input.protos], enums: String, longs: Number });
const { ControllerService } = loadPackageDefinition(definition).dbw.v1;
const controller = new ControllerService(input.target, credentials.createInsecure());
const call = (method, request) => promisify(controller[method]).call(controller, request);

const workers = input.iterations[0].length;
const { session, job } = await call("createJob", { job: input.job, membership: { liveWorkers: workers }, iteration: 0 });
const decisions = [];
let decision = job.decision;
const stream = controller.coordinate();
for (const [iteration, seconds] of input.iterations.entries()) {
  stream.write({
    job: input.job,
    session,
    arrivals: [{ iteration, seconds, workers: seconds.map((_, worker) => worker) }],
    summary: {
      iteration,
      k: decision.k,
      durationSeconds: seconds[decision.k - 1],
      loss: 2 * 0.99 ** iteration,
      learningRate: 0.1,
      moments: { meanSquaredNorm: 2, sumSquaredNorms: 3 * decision.k },
    },
  });
  [{ decision }] = await once(stream, "data");
  decisions.push({ iteration: decision.iteration, k: decision.k, reason: decision.reason });
}
stream.end();
await once(stream, "status");
const refused = await call("getJob", { job: "nobody" }).catch((error) => ({ code: error.code, details: error.details }));
await call("deleteJob", { job: input.job });
console.log(JSON.stringify({ decisions, refused }));
controller.close();
