"""Follows a training while it runs: what its parameter server writes down, and what its controller expects."""

import math
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc
import msgspec

from dbw.v1.controller_pb2 import WatchJobRequest
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Decision
from dbw_experiments.demo.runs import Arrival, Iteration, Run

RETRY_SECONDS = 0.2


class Expectation(NamedTuple):
    """What a controller says about an iteration before it begins."""

    seconds: float | None
    explanation: str


class Recorder:
    """Records one training of a job; `empty` is what is known of it before it begins."""

    def __init__(self, empty: Run, training_log: Path, controller: str, job: str) -> None:
        self._empty, self._job = empty, job
        self._tail = Tail(training_log)
        self._iterations: list[Iteration] = []
        self._arrivals: list[Arrival] = []
        self._expectations: dict[int, Expectation] = {}
        self._closing = threading.Event()
        self._channel = grpc.insecure_channel(controller)
        self._watcher = threading.Thread(target=self._watch, name=f"watch {job}", daemon=True)
        self._watcher.start()

    def run(self) -> Run:
        """The training as far as it has come."""
        for entry in self._tail.entries():
            self._add(entry)
        return replace(self._empty, iterations=tuple(self._iterations), arrivals=tuple(self._arrivals))

    def _add(self, entry: dict[str, Any]) -> None:
        number, k, duration = entry["iteration"], entry["k"], entry["duration_seconds"]
        expected = self._expectations.get(number, Expectation(None, ""))
        begin = entry["published_seconds"]
        self._iterations.append(Iteration(number, begin, duration, k, entry["loss"], *expected))
        for arrival in entry["arrivals"]:
            of = self._iterations[arrival["iteration"]]
            is_late = of.number != number or arrival["seconds"] > duration
            self._arrivals.append(Arrival(of.number, arrival["worker"], of.begin + arrival["seconds"], is_late))

    def _watch(self) -> None:
        """Take note of the job's decisions, as soon as there is the job, until it is deleted."""
        stub = ControllerServiceStub(self._channel)
        while not self._closing.wait(RETRY_SECONDS):
            if not self._iterations:
                continue  # there is no job before training begins
            with suppress(grpc.RpcError, ValueError):  # the second is gRPC's when the channel is closed
                for response in stub.WatchJob(WatchJobRequest(job=self._job, include_estimates=True)):
                    decision = response.job.decision
                    self._expectations[decision.iteration] = expectation(decision)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._channel.close()
        self._watcher.join()


class Tail:
    """The entries of a training log that have been added since it was looked at last."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def entries(self) -> Iterator[dict[str, Any]]:
        """What is new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):  # half-written
                    return
                self._read += len(line)
                yield msgspec.json.decode(line)


def expectation(decision: Decision) -> Expectation:
    """What a decision says."""
    durations = decision.estimates.durations_seconds
    seconds = durations[decision.k - 1] if 0 < decision.k <= len(durations) else math.nan
    return Expectation(seconds if math.isfinite(seconds) else None, decision.estimates.explanation)
