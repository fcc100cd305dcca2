"""Scripts of conversations between a parameter server and the controller; README.md describes how they are written.

`python -m tests.conversations.script --rewrite` writes what the Python client does into them, as their expected output.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from dbw.v1.controller_pb2 import CoordinateRequest, CreateJobResponse
from dbw.v1.iteration_pb2 import Arrivals, Decision, EndCause, IterationSummary, Membership
from dbw.v1.job_pb2 import Job
from dbw_controller.client.conversation import Conversation, Summary

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
SEPARATOR = "----"
MAX_ROWS_SHOWN, MAX_PRECEDING_SHOWN = 16, 4
REASONS = {
    "SESSION_NOT_FOUND": "NOT_FOUND",
    "SESSION_REPLACED": "ABORTED",
    "STALE_ITERATION": "FAILED_PRECONDITION",
    "INVALID_VALUE": "INVALID_ARGUMENT",
    "LIMIT_REACHED": "RESOURCE_EXHAUSTED",
    "NOT_OWNER": "PERMISSION_DENIED",
    "BUG": "INTERNAL",
}


def play(text: str) -> str:
    """A script, with what the Python client does as its expected output."""
    player, blocks = Player(), []
    for block in text.strip().split("\n\n"):
        commands, _, _ = f"{block}\n".partition(f"\n{SEPARATOR}\n")
        lines = commands.splitlines()
        blocks.append("\n".join([*lines, SEPARATOR, *player.play(lines)]))
    return "\n\n".join(blocks) + "\n"


class Player:
    """A parameter server that does as a script says."""

    def play(self, lines: list[str]) -> list[str]:
        """Run the commands of a step; returns the requests that are sent, and how the job is then."""
        sent: list[str] = []
        for line in lines:
            if line and not line.startswith("#"):
                command, *words = line.split()
                sent += getattr(self, command)(*words)
        return [*sent, self._state()]

    def new(self, *words: str) -> list[str]:
        fields = _fields(words)
        fallback: Any = fields.get("fallback", "last")
        iteration = int(fields.get("iteration", 0))
        self.conversation = Conversation("resnet", _workers(fields["workers"]), None, iteration, fallback)
        self.now = 0.0  # seconds
        return []

    def attach(self) -> list[str]:
        request = self.conversation.create_request()
        iteration = f" iteration={request.iteration}" if request.HasField("iteration") else ""
        return [f"CreateJob job={request.job} workers={_membership(request.membership)}{iteration}"]

    def created(self, *words: str) -> list[str]:
        fields = _fields(words)
        response = CreateJobResponse(session=fields["session"], job=Job(decision=_decision(fields)))
        return list(_request(self.conversation.created(response, self.now)))

    def arrived(self, *words: str) -> list[str]:
        fields = _fields(words)
        iteration = int(fields["iteration"]) if "iteration" in fields else None
        self.conversation.arrived(float(fields["seconds"]), int(fields["worker"]), iteration)
        return []

    def set_workers(self, *words: str) -> list[str]:
        self.conversation.set_workers(_workers(words[0]))
        return []

    def end(self, *words: str) -> list[str]:
        fields, summary = _fields(words), Summary()
        if "k" in fields:
            summary["k"] = int(fields["k"])
        if "duration" in fields:
            summary["duration_seconds"] = float(fields["duration"])
        if "loss" in fields:
            summary["loss"] = float(fields["loss"])
        if "cause" in fields:
            summary["end_cause"] = EndCause.Value(f"END_CAUSE_{fields['cause']}")
        ended = self.conversation.summary(**summary)
        self.now += ended.duration_seconds
        return list(_request(self.conversation.end_iteration(ended, self.now)))

    def decided(self, *words: str) -> list[str]:
        self.conversation.decided(_decision(_fields(words)), self.now)
        return []

    def begin(self) -> list[str]:
        if self.conversation.awaits_decision:
            self.now += self.conversation.patience
        self.conversation.begin_iteration(self.now)
        return []

    def wait(self, seconds: str) -> list[str]:
        self.now += float(seconds)
        return []

    def failed(self, name: str) -> list[str]:
        code = REASONS.get(name)
        self.conversation.failed(self.now, f"{code or name}: refused", name if code else None)
        return []

    def looked(self, *words: str) -> list[str]:
        job = None
        if words != ("gone",):
            fields = _fields(words)
            job = Job(update_time=Timestamp(seconds=int(fields["updated"])), decision=_decision(fields))
        return self.attach() if self.conversation.may_take_back(job, self.now) else []

    def iterations(self, *words: str) -> list[str]:
        fields = _fields(words)
        for _ in range(int(fields["count"])):
            for worker in range(int(fields["arrivals"])):
                self.conversation.arrived(1.0, worker, None)
            self.end()
            self.begin()
        return []

    def _state(self) -> str:
        now = self.conversation
        source = f"decided({now.decision.iteration})" if now.decision else "fallback"
        how = f"waiting({now.patience:g})" if now.awaits_decision else source
        deadline = ""
        if now.decision is not None and now.decision.HasField("deadline_seconds"):
            deadline = f" deadline={now.decision.deadline_seconds:g}"
        return f"iteration={now.iteration} k={now.k}{deadline} {how} {now.link.value}"


def _fields(words: tuple[str, ...]) -> dict[str, str]:
    return dict(word.split("=", maxsplit=1) for word in words)


def _workers(text: str) -> int | list[int]:
    return [int(number) for number in text.strip("()").split(",")] if text.startswith("(") else int(text)


def _decision(fields: dict[str, str]) -> Decision:
    decision = Decision(iteration=int(fields.get("iteration", 0)), k=int(fields.get("k", 0)))
    if "deadline" in fields:
        decision.deadline_seconds = float(fields["deadline"])
    return decision


def _request(request: CoordinateRequest | None) -> Iterator[str]:
    if request is None:
        return
    yield f"EndIteration job={request.job} session={request.session}"
    if len(request.preceding) > MAX_PRECEDING_SHOWN:
        first, last = request.preceding[0].summary.iteration, request.preceding[-1].summary.iteration
        rows = sum(len(batch.seconds) for ended in request.preceding for batch in ended.arrivals)
        yield f"  preceding iterations={first}..{last} rows={rows}"
    else:
        for ended in request.preceding:
            yield "  preceding"
            yield from map(_arrivals, ended.arrivals)
            yield _summary(ended.summary)
        if request.preceding:
            yield "  and"
    rows = sum(len(batch.seconds) for batch in request.arrivals)
    if rows > MAX_ROWS_SHOWN:
        first, last = request.arrivals[0].iteration, request.arrivals[-1].iteration
        yield f"  arrivals iterations={first}..{last} rows={rows}"
    else:
        yield from map(_arrivals, request.arrivals)
    yield _summary(request.summary)
    if request.HasField("membership"):
        yield f"  membership workers={_membership(request.membership)}"


def _arrivals(batch: Arrivals) -> str:
    workers, seconds = ",".join(map(str, batch.workers)), ",".join(f"{time:g}" for time in batch.seconds)
    return f"  arrivals iteration={batch.iteration} preceding={batch.preceding} workers=({workers}) seconds=({seconds})"


def _summary(summary: IterationSummary) -> str:
    words = [f"  summary iteration={summary.iteration} k={summary.k} duration={summary.duration_seconds:g}"]
    if summary.HasField("previous_k"):
        words.append(f"previous_k={summary.previous_k}")
    if summary.HasField("loss"):
        words.append(f"loss={summary.loss:g}")
    if summary.end_cause > EndCause.END_CAUSE_K_REACHED:
        words.append(f"cause={EndCause.Name(summary.end_cause).removeprefix('END_CAUSE_')}")
    if summary.HasField("decision_iteration"):
        words.append(f"decision={summary.decision_iteration}")
    if summary.fallback:
        words.append("fallback")
    return " ".join(words)


def _membership(membership: Membership) -> str:
    numbers = ",".join(map(str, membership.workers))
    return f"({numbers})" if numbers else str(membership.live_workers)


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit("usage: python -m tests.conversations.script --rewrite")
    for path in SCRIPTS:
        path.write_text(play(path.read_text()))
