// Runs scripts of tests/conversations, whose README.md describes them, and compares what is sent with what they expect.
//
//   $ npm run build && npm test
import { readFileSync } from "node:fs";
import { status } from "@grpc/grpc-js";
import type { CreateJobRequest } from "./build/types/dbw/v1/CreateJobRequest.js";
import type { EndCause } from "./build/types/dbw/v1/EndCause.js";
import {
  type Decision,
  type Fallback,
  type Membership,
  type Request,
  type Summary,
  type Workers,
  DbwConversation,
} from "./dbw_conversation.js";

const SEPARATOR = "----";
const MAX_ROWS_SHOWN = 16;
// The codes of gRPC that come with the reasons of error.proto, or alone.
const CODES: Record<string, status> = {
  INVALID_VALUE: status.INVALID_ARGUMENT,
  SESSION_NOT_FOUND: status.NOT_FOUND,
  LIMIT_REACHED: status.RESOURCE_EXHAUSTED,
  STALE_ITERATION: status.FAILED_PRECONDITION,
  SESSION_REPLACED: status.ABORTED,
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

function* show(request?: Request): Generator<string> {
  if (!request) return;
  const { job, session, arrivals, summary, membership } = request;
  yield `EndIteration job=${job} session=${session}`;
  const rows = arrivals.reduce((sum, batch) => sum + batch.seconds.length, 0);
  if (rows > MAX_ROWS_SHOWN) {
    yield `  arrivals iterations=${arrivals[0]!.iteration}..${arrivals.at(-1)!.iteration} rows=${rows}`;
  } else {
    for (const { iteration, preceding, workers, seconds } of arrivals) {
      const columns = `workers=${column(workers)} seconds=${column(seconds)}`;
      yield `  arrivals iteration=${iteration} preceding=${preceding} ${columns}`;
    }
  }
  const { iteration, k, durationSeconds, previousK, loss, endCause, fallback } = summary;
  const words = [`  summary iteration=${iteration} k=${k} duration=${short(durationSeconds)}`];
  if (previousK !== undefined) words.push(`previous_k=${previousK}`);
  if (loss !== undefined) words.push(`loss=${short(loss)}`);
  if (endCause) words.push(`cause=${String(endCause).replace("END_CAUSE_", "")}`);
  if (fallback) words.push("fallback");
  yield words.join(" ");
  if (membership) yield `  membership workers=${shown(membership)}`;
}

// A parameter server that does as a script says.
class Player {
  private conversation!: DbwConversation;

  // Runs the commands of a step; returns the requests that are sent, and how the job is then.
  play(commands: string[]): string[] {
    const sent = commands.filter((line) => !line.startsWith("#")).flatMap((line) => [...this.run(line)]);
    const { iteration, k, decision, awaitsDecision, link } = this.conversation;
    const deadline = decision?.deadlineSeconds === undefined ? "" : ` deadline=${short(decision.deadlineSeconds)}`;
    const how = decision ? "decided" : awaitsDecision ? "waiting" : "fallback";
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
        break;
      case "attach":
        yield* showCreate(conversation.createRequest());
        break;
      case "created":
        yield* show(conversation.created(fields["session"]!, decisionFrom(fields)));
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
        yield* show(conversation.endIteration(summary));
        break;
      }
      case "decided":
        conversation.decided(decisionFrom(fields));
        break;
      case "begin":
        conversation.beginIteration();
        break;
      case "failed":
        conversation.failed(CODES[words[0]!], "refused");
        break;
      case "iterations":
        for (let i = 0; i < Number(fields["count"]); i++) {
          for (let worker = 0; worker < Number(fields["arrivals"]); worker++) {
            conversation.arrived(conversation.iteration, worker, 1);
          }
          yield* show(conversation.endIteration({}));
          conversation.beginIteration();
        }
        break;
      default:
        throw new Error(`there is no command ${command}`);
    }
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
