// A synchronous parameter server in TypeScript that asks a DBW controller, every iteration, how many gradients to wait
// for.
//
// Eight workers compute gradients of a logistic regression, a quarter of them five times slower than the others.
// dbw_job.ts talks to the controller, as dbw_conversation.ts says; `train` below is where a parameter server uses it.
//
//   $ dbw controller
//   $ npm ci && npm run build
//   $ npm start -- --controller 127.0.0.1:50051 --job node --workers 8 --iterations 60 --transport stream
import { EventEmitter, once } from "node:events";
import { performance } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { DbwJob, type Transport } from "./dbw_job.js";

const FEATURES = 20;
const EXAMPLES = 2000;
const BATCH = 32;
const LEARNING_RATE = 0.5;

type Vector = number[];
interface Example {
  features: Vector;
  label: 0 | 1;
}
interface Gradient {
  worker: number;
  iteration: number; // of the parameters that it was computed with
  values: Vector;
  loss: number;
  arrived: number; // seconds since those parameters were published
}
interface Published {
  iteration: number;
  time: number;
  parameters: Vector;
}

// Where the parameter server publishes parameters, and workers leave gradients.
class Exchange extends EventEmitter {
  newest?: Published;
  private readonly gradients: Gradient[] = [];

  publish(published: Published): void {
    this.newest = published;
    this.emit("published");
  }

  push(gradient: Gradient): void {
    this.gradients.push(gradient);
    this.emit("gradient");
  }

  // The next gradient; nothing if none arrives in this many seconds.
  async take(limit: number): Promise<Gradient | undefined> {
    if (!this.gradients.length) {
      const timeout = new AbortController();
      const timer = setTimeout(() => timeout.abort(), 1000 * limit);
      await once(this, "gradient", { signal: timeout.signal }).catch(() => undefined);
      clearTimeout(timer);
    }
    return this.gradients.shift();
  }
}

const dot = (a: Vector, b: Vector) => a.reduce((sum, value, j) => sum + value * b[j]!, 0);
const seconds = () => performance.now() / 1000;

// A generator of uniform numbers (mulberry32), because Math.random has no seed.
function uniform(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

function makeExamples(): Example[] {
  const random = uniform(0);
  const vector = () => Array.from({ length: FEATURES }, () => 4 * random() - 2);
  const truth = vector();
  const labelled = (features: Vector): Example => ({ features, label: dot(truth, features) > 0 ? 1 : 0 });
  return Array.from({ length: EXAMPLES }, () => labelled(vector()));
}

// Computes gradients of the newest parameters, and begins again as soon as there are newer ones.
async function work(worker: number, slow: boolean, examples: Example[], exchange: Exchange): Promise<void> {
  const random = uniform(worker + 1);
  for (let last: Published | undefined; ;) {
    if (exchange.newest === last) await once(exchange, "published");
    const { iteration, time, parameters } = (last = exchange.newest!);
    const values: Vector = Array(FEATURES).fill(0);
    let loss = 0;
    for (let i = 0; i < BATCH; i++) {
      const { features, label } = examples[Math.floor(random() * examples.length)]!;
      const probability = 1 / (1 + Math.exp(-dot(parameters, features)));
      features.forEach((feature, j) => (values[j]! += ((probability - label) * feature) / BATCH));
      loss -= Math.log(label ? probability : 1 - probability) / BATCH;
    }
    await sleep((slow ? 5 : 1) * (10 - 5 * Math.log(1 - random())));
    exchange.push({ worker, iteration, values, loss, arrived: seconds() - time });
  }
}

async function train(job: DbwJob, exchange: Exchange, iterations: number): Promise<void> {
  const begin = seconds();
  let parameters: Vector = Array(FEATURES).fill(0);
  let [late, fallbacks] = [0, 0];
  for (let iteration = 0; iteration < iterations; iteration++) {
    const time = seconds();
    exchange.publish({ iteration, time, parameters });
    const averaged: Gradient[] = [];
    let durationSeconds = 0;
    let endCause: "END_CAUSE_K_REACHED" | "END_CAUSE_DEADLINE" = "END_CAUSE_K_REACHED";
    while (averaged.length < job.k) {
      const pause = job.pauseSeconds(averaged.length, seconds() - time);
      const gradient = await exchange.take(pause);
      if (!gradient && pause > 0) continue;
      if (!gradient) {
        endCause = "END_CAUSE_DEADLINE";
        durationSeconds = seconds() - time;
        break;
      }
      job.arrived(gradient.iteration, gradient.worker, gradient.arrived);
      if (gradient.iteration === iteration) {
        averaged.push(gradient);
        durationSeconds = gradient.arrived;
      } else {
        late++; // it tells how long it took, and is of no other use
      }
    }
    const k = averaged.length;
    const mean = parameters.map((_, j) => averaged.reduce((sum, { values }) => sum + values[j]!, 0) / k);
    parameters = parameters.map((value, j) => value - LEARNING_RATE * mean[j]!);

    const loss = averaged.reduce((sum, gradient) => sum + gradient.loss, 0) / k;
    const sumSquaredNorms = averaged.reduce((sum, { values }) => sum + dot(values, values), 0);
    if (iteration % 10 === 0 || iteration + 1 === iterations) {
      console.log(`iteration ${iteration}: k = ${k}, loss ${loss.toFixed(3)}`);
    }
    if (job.onFallback) fallbacks++;
    await job.endIteration({
      k,
      durationSeconds,
      endCause,
      publishedSeconds: time - begin,
      loss,
      learningRate: LEARNING_RATE,
      moments: { meanSquaredNorm: dot(mean, mean), sumSquaredNorms },
    });
  }
  const duration = (seconds() - begin).toFixed(2);
  console.log(
    `${iterations} iterations in ${duration} s, ${late} late gradients, ${fallbacks} iterations without a decision`,
  );
}

interface Options {
  controller: string;
  job: string;
  workers: number;
  iterations: number;
  transport: Transport;
}

function readOptions(): Options {
  const { values } = parseArgs({
    options: {
      controller: { type: "string", default: "127.0.0.1:50051" },
      job: { type: "string", default: "node" },
      workers: { type: "string", default: "8" },
      iterations: { type: "string", default: "60" },
      transport: { type: "string", default: "stream" },
    },
  });
  const [workers, iterations] = [Number(values.workers), Number(values.iterations)];
  if (!(Number.isInteger(workers) && workers > 0 && Number.isInteger(iterations) && iterations > 0)) {
    throw new Error("--workers and --iterations must be whole numbers, at least 1");
  }
  const { controller, job, transport } = values;
  if (transport !== "stream" && transport !== "unary") throw new Error("--transport must be stream or unary");
  return { controller, job, workers, iterations, transport };
}

let options: Options;
try {
  options = readOptions();
} catch (error) {
  console.error((error as Error).message);
  process.exit(2);
}
const exchange = new Exchange().setMaxListeners(0);
const examples = makeExamples();
for (let worker = 0; worker < options.workers; worker++) {
  void work(worker, worker < Math.floor(options.workers / 4), examples, exchange);
}
const job = await DbwJob.create(options.controller, options.job, options.workers, options.transport);
await train(job, exchange, options.iterations);
await job.delete();
process.exit(); // while workers may hang
