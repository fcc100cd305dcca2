// Runs scripts of tests/conversations, whose README.md describes them, and compares what is sent with what they expect.
//
//   $ npm run build && npm test
import { readFileSync } from "node:fs";
import { status } from "@grpc/grpc-js";
import type { CreateJobRequest } from "./build/types/dbw/v1/CreateJobRequest.js";
import type { EndCause } from "./build/types/dbw/v1/EndCause.js";
import {
  type Batch,
  type Decision,
  type EndedIteration,
  type Fallback,
  type Membership,
  type Request,
  type Summary,
  type Workers,
  DbwConversation,
} from "./dbw_conversation.js";

const SEPARATOR = "----";
const [MAX_ROWS_SHOWN, MAX_PRECEDING_SHOWN] = [16, 4];
// The codes of gRPC that come with the reasons of error.proto, or alone.
const CODES: Record<string, status> = {
  INVALID_VALUE: status.INVALID_ARGUMENT,
  SESSION_NOT_FOUND: status.NOT_FOUND,
  LIMIT_REACHED: status.RESOURCE_EXHAUSTED,
  STALE_ITERATION: status.FAILED_PRECONDITION,
  SESSION_REPLACED: status.ABORTED,
  NOT_OWNER: status.PERMISSION_DENIED,
  BUG: status.INTERNAL,
  UNAVAILABLE: status.UNAVAILABLE,
  RESOURCE_EXHAUSTED: status.RESOURCE_EXHAUSTED,
};

type Fields = Record<string, string>; // the words `key=value` of a command

const number = (text?: string) => (text === undefined ? undefined : Number(text));
const short = (value: unknown) => String(Number(Number(value).toPrecision(6)));
const column = (numbers: number[]) => `(${numbers.map(short).join(",")})`;
const shown = ({ liveWorkers, workers }: Membership) => (workers.length ? column(workers) : `${liveWorkers}`);

function workersFrom(text: string): Workers {
  return text.startsWith("(") ? text.slice(1, -1).split(",").map(Number) : Number(text);
}

function decisionFrom({ iteration, k, deadline }: Fields): Decision {
  return { iteration: Number(iteration), k: Number(k), deadlineSeconds: number(deadline) };
}

function* showCreate(request: CreateJobRequest & { membership: Membership }): Generator<string> {
  const iteration = request.iteration === undefined ? "" : ` iteration=${request.iteration}`;
  yield `CreateJob job=${request.job} workers=${shown(request.membership)}${iteration}`;
}

const rowsOf = (batches: Batch[]) => batches.reduce((sum, batch) => sum + batch.seconds.length, 0);

function* show(request?: Request): Generator<string> {
  if (!request) return;
  const { job, session, preceding, arrivals, summary, membership } = request;
  yield `EndIteration job=${job} session=${session}`;
  if (preceding.length > MAX_PRECEDING_SHOWN) {
    const rows = preceding.reduce((sum, ended) => sum + rowsOf(ended.arrivals), 0);
    const [first, last] = [preceding[0]!.summary.iteration, preceding.at(-1)!.summary.iteration];
    yield `  preceding iterations=${first}..${last} rows=${rows}`;
  } else {
    for (const ended of preceding) {
      yield "  preceding";
      yield* showArrivals(ended.arrivals);
      yield showSummary(ended.summary);
    }
    if (preceding.length) yield "  and";
  }
  const rows = rowsOf(arrivals);
  if (rows > MAX_ROWS_SHOWN) {
    yield `  arrivals iterations=${arrivals[0]!.iteration}..${arrivals.at(-1)!.iteration} rows=${rows}`;
  } else {
    yield* showArrivals(arrivals);
  }
  yield showSummary(summary);
  if (membership) yield `  membership workers=${shown(membership)}`;
}

function* showArrivals(arrivals: Batch[]): Generator<string> {
  for (const { iteration, preceding, workers, seconds } of arrivals) {
    const columns = `workers=${column(workers)} seconds=${column(seconds)}`;
    yield `  arrivals iteration=${iteration} preceding=${preceding} ${columns}`;
  }
}

function showSummary(summary: EndedIteration["summary"]): string {
  const { iteration, k, durationSeconds, previousK, loss, endCause, decisionIteration, fallback } = summary;
  const words = [`  summary iteration=${iteration} k=${k} duration=${short(durationSeconds)}`];
  if (previousK !== undefined) words.push(`previous_k=${previousK}`);
  if (loss !== undefined) words.push(`loss=${short(loss)}`);
  if (endCause) words.push(`cause=${String(endCause).replace("END_CAUSE_", "")}`);
  if (decisionIteration !== undefined) words.push(`decision=${decisionIteration}`);
  if (fallback) words.push("fallback");
  return words.join(" ");
}

// A parameter server that does as a script says.
class Player {
  private conversation!: DbwConversation;
  private now = 0; // seconds

  // Runs the commands of a step; returns the requests that are sent, and how the job is then.
  play(commands: string[]): string[] {
    const sent = commands.filter((line) => !line.startsWith("#")).flatMap((line) => [...this.run(line)]);
    const { iteration, k, decision, awaitsDecision, patience, link } = this.conversation;
    const deadline = decision?.deadlineSeconds === undefined ? "" : ` deadline=${short(decision.deadlineSeconds)}`;
    const source = decision ? `decided(${decision.iteration})` : "fallback";
    const how = awaitsDecision ? `waiting(${short(patience)})` : source;
    return [...sent, `iteration=${iteration} k=${k}${deadline} ${how} ${link}`];
  }

  private *run(line: string): Generator<string> {
    const [command, ...words] = line.split(" ");
    const fields: Fields = Object.fromEntries(words.map((word) => word.split("=")));
    const { conversation } = this;
    switch (command) {
      case "new":
        this.conversation = new DbwConversation(
          "resnet",
          {},
          workersFrom(fields["workers"]!),
          number(fields["iteration"]),
          fields["fallback"] as Fallback | undefined,
        );
        this.now = 0;
        break;
      case "attach":
        yield* showCreate(conversation.createRequest());
        break;
      case "created":
        yield* show(conversation.created(this.now, fields["session"]!, decisionFrom(fields)));
        break;
      case "arrived":
        conversation.arrived(
          number(fields["iteration"]) ?? conversation.iteration,
          Number(fields["worker"]),
          Number(fields["seconds"]),
        );
        break;
      case "set_workers":
        conversation.setWorkers(workersFrom(words[0]!));
        break;
      case "end": {
        const summary: Summary = {};
        if (fields["k"]) summary.k = Number(fields["k"]);
        if (fields["duration"]) summary.durationSeconds = Number(fields["duration"]);
        if (fields["loss"]) summary.loss = Number(fields["loss"]);
        if (fields["cause"]) summary.endCause = `END_CAUSE_${fields["cause"]}` as EndCause;
        yield* this.end(summary);
        break;
      }
      case "decided":
        conversation.decided(decisionFrom(fields), this.now);
        break;
      case "begin":
        this.begin();
        break;
      case "looked": {
        const job = { updated: Number(fields["updated"]), iteration: Number(fields["iteration"]) };
        const mayTakeBack = conversation.mayTakeBack(words[0] === "gone" ? undefined : job, this.now);
        if (mayTakeBack) yield* showCreate(conversation.createRequest());
        break;
      }
      case "wait":
        this.now += Number(words[0]);
        break;
      case "failed":
        conversation.failed(this.now, CODES[words[0]!], "refused");
        break;
      case "iterations":
        for (let i = 0; i < Number(fields["count"]); i++) {
          for (let worker = 0; worker < Number(fields["arrivals"]); worker++) {
            conversation.arrived(conversation.iteration, worker, 1);
          }
          yield* this.end({});
          this.begin();
        }
        break;
      default:
        throw new Error(`there is no command ${command}`);
    }
  }

  // The iteration takes as long as its summary says.
  private *end(summary: Summary): Generator<string> {
    this.now += this.conversation.durationSeconds(summary);
    yield* show(this.conversation.endIteration(summary, this.now));
  }

  // A wait in vain takes as long as it may.
  private begin(): void {
    if (this.conversation.awaitsDecision) this.now += this.conversation.patience;
    this.conversation.beginIteration(this.now);
  }
}

// Whether all steps of a script have the output that it expects.
function passes(path: string): boolean {
  const player = new Player();
  const wrong = readFileSync(path, "utf8")
    .trim()
    .split("\n\n")
    .filter((step) => {
      const lines = step.split("\n");
      const commands = lines.slice(0, lines.indexOf(SEPARATOR));
      const expected = lines.slice(lines.indexOf(SEPARATOR) + 1).join("\n");
      const output = player.play(commands).join("\n");
      if (output === expected) return false;
      const difference = ["---- expected", expected, "---- but was", output, ""];
      console.error([path, ...commands, ...difference].join("\n"));
      return true;
    });
  return wrong.length === 0;
}

const paths = process.argv.slice(2);
const failures = paths.filter((path) => !passes(path)).length;
console.log(`${paths.length} scripts, ${failures} of them failed`);
process.exit(failures === 0 && paths.length > 0 ? 0 : 1);
