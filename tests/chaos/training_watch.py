"""Watches one training: that it goes on, and that nothing of it is lost beyond what its checkpoints allow."""

import asyncio
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import grpc
import torch

from dbw.v1 import parameter_server_pb2 as pb
from dbw.v1.parameter_server_pb2_grpc import ParameterServerServiceStub
from dbw_ps import training_log
from dbw_ps.checkpoint import NAME
from dbw_ps.model import FlatModel
from dbw_runtime.configuration import UsageError
from tests import models
from tests.chaos.cluster import CHECKPOINT_ITERATIONS, TINY, Training
from tests.chaos.history import History
from tests.chaos.replay import ReplayError, differ, replay

POLL_SECONDS = 0.2
RESUMED = "going on from the checkpoint of iteration "


class Sightings:
    """When something was seen that should be seen again and again."""

    def __init__(self) -> None:
        self._times = [time.monotonic()]

    def add(self) -> None:
        """It is seen now."""
        self._times.append(time.monotonic())

    def forget(self) -> None:
        """Look at pauses from now on only."""
        self._times = self._times[-1:]

    def longest_pause(self) -> float:
        """Between two sightings, or the last one and now."""
        return max(later - earlier for earlier, later in pairwise([*self._times, time.monotonic()]))

    def after(self, at: float) -> float | None:
        """When it was first seen after a point in time, if it was."""
        return next((seen for seen in self._times if seen > at), None)


class TrainingWatch:
    """Follows the iterations of a training, also from one process of its parameter server to the next."""

    def __init__(self, training: Training, history: History) -> None:
        self._training, self._history, self.name = training, history, training.name
        self.iteration = -1  # the last one that was seen
        self.progress, self.decisions = Sightings(), Sightings()  # of iterations that end, and of k being decided
        self._starts = 0  # of the process that `iteration` is of
        self._rogues: set[int] = set()
        self._unlogged: list[tuple[int, int]] = []  # first and last iteration of times when the disk was full
        self._at_start: tuple[int, float, int] = 0, 0.0, 0  # newest checkpoint, its time, and end of the log, then
        training.server.process.before_start = self._before_start
        training.server.process.after_line = self._after_line

    async def run(self) -> None:
        """Ask for the iteration, again and again."""
        process = self._training.server.process
        async with grpc.aio.insecure_channel(self._training.server.target) as channel:
            stub = ParameterServerServiceStub(channel)
            while True:
                await asyncio.sleep(POLL_SECONDS)
                starts = process.starts
                try:
                    status: Any = await stub.GetStatus(pb.GetStatusRequest(), timeout=5.0)
                except grpc.RpcError:
                    pass  # which the probes judge
                else:
                    if process.starts == starts:
                        self._seen(starts, status.iteration)
                        if status.decision_source in (pb.DECISION_SOURCE_CONTROLLER, pb.DECISION_SOURCE_EMBEDDED):
                            self.decisions.add()

    def _seen(self, starts: int, iteration: int) -> None:
        if starts == self._starts and iteration > self.iteration:
            self._history.counts[f"iterations of {self.name}"] += iteration - self.iteration
            self.progress.add()
        if starts == self._starts and iteration < self.iteration:
            self._history.violated(f"{self.name} fell from iteration {self.iteration} to {iteration} without a restart")
        self._starts, self.iteration = starts, iteration

    def _newest_checkpoint(self) -> tuple[int, float]:
        """Its iteration, and when it was written; 0 if there is none."""
        paths = self._training.checkpoints.glob("checkpoint-*.pt")
        found = [(int(match[1]), path.stat().st_mtime) for path in paths if (match := NAME.fullmatch(path.name))]
        return max(found, default=(0, 0.0))

    def _before_start(self) -> None:
        entries = self.logged()
        self._at_start = *self._newest_checkpoint(), (entries[-1]["iteration"] + 1 if entries else 0)

    def _after_line(self, line: Mapping[str, Any]) -> None:
        """See where a parameter server goes on, that this is not too far behind, and who is a rogue."""
        message = line.get("message", "")
        if message == "a worker has joined" and "rogue" in line["worker_id"]:
            self._rogues.add(line["worker"])
        if message == "listening":
            if self._at_start[0] == 0:
                self._resumed(0)
        elif message.startswith(RESUMED):
            self._resumed(int(message.removeprefix(RESUMED)))

    def _resumed(self, iteration: int) -> None:
        checkpoint, written_at, reached = self._at_start
        redone = max(0, reached - iteration)
        self._history.counts[f"iterations redone by {self.name}"] += redone
        self._history.note(f"{self.name} goes on from {iteration}, redoes {redone} iterations")
        if iteration < checkpoint:
            self._history.violated(f"{self.name} has a checkpoint of {checkpoint}, and goes on from {iteration}")
        if redone > 2 * CHECKPOINT_ITERATIONS and self._training.saving_disturbed_until < written_at:
            self._history.violated(f"{self.name} redoes {redone} iterations, though nothing kept it from saving")

    def logged(self) -> list[dict[str, Any]]:
        """What is in the training log."""
        path = self._training.log
        try:
            return list(training_log.read(path)) if path.exists() else []
        except UsageError as error:
            self._history.violated(f"{self.name}: {error}")
            return []

    def disk_was_full(self, first: int) -> None:
        """Lines from this iteration on may be missing."""
        self._unlogged.append((first - 1, self.iteration + 1))

    def check_log(self, is_over: bool = False) -> None:
        """Every iteration is there, once, but for those that a full disk had no room for."""
        found = [entry["iteration"] for entry in self.logged()]
        expected = 0
        for iteration in found:
            missing = range(expected, iteration)
            if iteration < expected or not all(map(self._may_be_missing, missing)):
                self._history.violated(f"the log of {self.name} has {iteration} where {expected} is expected")
            elif missing:
                self._history.counts[f"log lines of {self.name} lost while its disk was full"] += len(missing)
            expected = iteration + 1
        if is_over and expected != self._newest_checkpoint()[0]:
            last = self._newest_checkpoint()[0]
            self._history.violated(f"{self.name} has ended with a checkpoint of {last}, its log before {expected}")

    def _may_be_missing(self, iteration: int) -> bool:
        return any(first <= iteration <= last for first, last in self._unlogged)

    def check_parameters(self) -> None:
        """What was trained is finite, what the log says that it must be, and no checkpoint was damaged."""
        newest = max(self._training.checkpoints.glob("checkpoint-*.pt"), default=None)
        if newest is None:
            self._history.violated(f"{self.name} has no checkpoint")
        else:
            model = torch.load(newest, weights_only=True)["model"]
            if not all(bool(torch.isfinite(tensor).all()) for tensor in model.values()):
                self._history.violated(f"parameters of {self.name} are not finite")
            elif self._training.kind.model == TINY:
                self._check_replay(model)
        for path in self._training.checkpoints.glob("*.damaged-*"):
            self._history.violated(f"{path.name} of {self.name} was damaged")

    def _check_replay(self, model: Mapping[str, Any]) -> None:
        entries = self.logged()
        if len(entries) != self._newest_checkpoint()[0]:
            self._history.counts[f"trainings not computed again from their logs, which miss lines ({self.name})"] += 1
            return
        trained = FlatModel(models.tiny())
        trained.load_state_dict(model)
        try:
            if differ(replay(entries, self._rogues), trained.vector):
                self._history.violated(f"{self.name} has not the parameters that follow from its log")
        except ReplayError as error:
            self._history.violated(f"{self.name}: {error}")
        else:
            self._history.counts[f"iterations of {self.name} computed again from its log"] += len(entries)
