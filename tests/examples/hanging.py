"""Workers of examples that hang, and a controller that asks for all of them nevertheless, within a deadline."""

import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from dbw.v1.controller_pb2 import CoordinateResponse
from dbw.v1.iteration_pb2 import END_CAUSE_DEADLINE, IterationSummary
from tests.examples.recorder import RecordedJob
from tests.proxy import Forward, RefusalError, proxied
from tests.servers import wait_until

HUNG = 5  # of six workers
HUNG_ITERATIONS = 20  # that go on nevertheless


@contextmanager
def deciding(target: str, k: int, deadline_seconds: float, last: float = math.inf) -> Iterator[str]:
    """A proxy in front of a controller whose decisions all ask for k gradients within a deadline.

    The controller is gone after the last of them.
    """
    answers = 0

    def decide(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        nonlocal answers
        for data in forward(requests):
            response = CoordinateResponse.FromString(data) if rpc == "Coordinate" else None
            answers += response is not None
            if answers > last:
                raise RefusalError(grpc.StatusCode.UNAVAILABLE, "gone")
            if response is not None:
                response.decision.k, response.decision.deadline_seconds = k, deadline_seconds
            yield data if response is None else response.SerializeToString()

    with proxied(target, decide) as address:
        yield address


def descendants(root: int) -> list[int]:
    """The processes that a process has started, and those that they have, oldest first."""
    parents: dict[int, list[tuple[int, int]]] = {}  # each one's children: when they were started, and their numbers
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents.setdefault(int(fields[1]), []).append((int(fields[19]), int(path.parent.name)))
    found, unseen = [], [root]
    while unseen:
        unseen += (children := [child for _, child in sorted(parents.get(unseen.pop(), []))])
        found += children
    return found


@contextmanager
def stopped(processes: list[int], end: signal.Signals = signal.SIGCONT) -> Iterator[None]:
    """Let processes hang, until they go on, or for good with SIGKILL as the end."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):  # their own program may have ended them
                os.kill(process, end)


def wait_until_gone_on(job: RecordedJob) -> None:
    """Wait for iterations that end with the only worker that does not hang."""
    before = len(alone(job))
    wait_until(lambda: len(alone(job)) > before + HUNG_ITERATIONS)


def assert_went_on(job: RecordedJob) -> None:
    """Assert that iterations ended at their deadlines, with the only worker that did not hang."""
    assert len(alone(job)) > HUNG_ITERATIONS
    assert {summary.end_cause for summary in alone(job)} == {END_CAUSE_DEADLINE}


def alone(job: RecordedJob) -> list[IterationSummary]:
    """The iterations with a single gradient."""
    return [summary for summary in job.summaries if summary.k == 1]
