"""A training is saved in the background, with the newest state that its job has learnt, wherever that is."""

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from dbw.v1.controller_pb2 import ExportJobStateResponse, JobStateHeader
from dbw_ps import checkpointing
from dbw_ps.checkpoint import CheckpointFolder, CheckpointWriter
from dbw_ps.checkpointing import Checkpointing
from dbw_ps.decider import FinishedIteration, Source
from dbw_ps.members import Members
from dbw_ps.model import FlatModel
from dbw_ps.optimiser import Optimiser
from dbw_ps.options import PsOptions
from dbw_ps.progress import Progress, TrainingState
from dbw_runtime.disk_watch import DiskWatch
from tests.servers import PATIENCE

DUE = 1e9  # when any checkpoint is


def learnt(iterations: int) -> bytes:
    """A state that was learnt from this many iterations."""
    return ExportJobStateResponse(header=JobStateHeader(learnt_iterations=iterations)).SerializeToString()


class Job:
    """A decider that holds a state."""

    k, deadline_seconds, replaced = 1, None, False

    def __init__(self, state: bytes | None, source: Source = Source.CONTROLLER) -> None:
        self.state, self.source = state, source

    def set_workers(self, workers: Sequence[int]) -> None: ...

    async def open(self) -> None: ...

    async def end_iteration(self, finished: FinishedIteration) -> None: ...

    async def export_state(self) -> bytes | None:
        return self.state

    async def import_state(self, state: bytes) -> bool:
        self.state = state
        return True

    async def close(self, delete: bool = False) -> None: ...


class Writer(CheckpointWriter):
    """Writes to a disk that hangs until it may write."""

    def __init__(self, folder: CheckpointFolder, may_write: threading.Event) -> None:
        super().__init__(folder, every_iterations=1, every_seconds=0)
        self._may_write = may_write

    def write(self, iteration: int, state: dict[str, Any]) -> bool:
        self._may_write.wait()
        return super().write(iteration, state)


class Saved:
    """A training whose checkpoints are saved in a folder."""

    def __init__(self, path: Path, state: bytes | None = None, last_seconds: float = 60.0) -> None:
        model = FlatModel(nn.Linear(2, 1))
        self.state = TrainingState(model, Optimiser(model, "sgd:lr=0.1"), Progress())
        self.folder = CheckpointFolder(path)
        self.may_write = threading.Event()
        self.may_write.set()
        members = Members(secrets.token_urlsafe, 10.0)
        members.join("worker", 0.0)
        self.disk = DiskWatch()
        options = PsOptions(model="tests.models:tiny", last_checkpoint_seconds=last_seconds)
        writer, compute = Writer(self.folder, self.may_write), ThreadPoolExecutor(1)
        self.saving = Checkpointing(
            options, writer, self.state, members, compute, self.disk, None, {"job_state": state}
        )

    def job_state(self) -> bytes | None:
        """What the newest checkpoint has of the job."""
        found = self.folder.newest()
        assert found is not None
        assert found[1]["workers"] == {"worker": 0}
        state: bytes | None = found[1]["job_state"]
        return state


Save = Callable[..., Saved]


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def save(tmp_path: Path) -> Iterator[Save]:
    """Makes trainings that are saved in a folder of the test's own."""
    made: list[Saved] = []

    def make(state: bytes | None = None, last_seconds: float = 60.0) -> Saved:
        made.append(Saved(tmp_path, state, last_seconds))
        return made[-1]

    yield make
    for training in made:
        training.folder.close()


@pytest.mark.parametrize(
    ("ours", "job", "newest"),
    [(None, 3, 3), (3, 5, 5), (5, 5, 5), (5, 3, 5), (5, 0, 5)],
)
def test_the_state_that_was_learnt_from_more_iterations_wins_on_both_sides(
    save: Save, ours: int | None, job: int, newest: int
) -> None:
    training = save(None if ours is None else learnt(ours))
    decider = Job(learnt(job))
    asyncio.run(training.saving.save_last(decider))
    assert training.job_state() == decider.state == learnt(newest)


@pytest.mark.parametrize("decider", [Job(None), Job(learnt(9), Source.FALLBACK)], ids=["no answer", "on fallback"])
def test_without_the_job_s_state_a_checkpoint_keeps_the_last_one(save: Save, decider: Job) -> None:
    training = save(learnt(5))
    asyncio.run(training.saving.save_last(decider))
    assert training.job_state() == learnt(5)


class HungJob(Job):
    """A decider that does not answer, though it has not noticed that yet."""

    async def export_state(self) -> bytes | None:
        await asyncio.Event().wait()
        return None


def test_a_checkpoint_does_not_wait_for_a_controller_that_hangs(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "LEARNT_SECONDS", 0.01)
    training = save(learnt(5))
    asyncio.run(training.saving.save_last(HungJob(learnt(9))))
    assert training.job_state() == learnt(5)


@pytest.mark.parametrize(
    ("source", "state"), [(Source.CONTROLLER, learnt(5)), (Source.EMBEDDED, learnt(5)), (Source.FALLBACK, None)]
)
def test_a_job_gets_back_what_it_had_learnt_before_a_restart(save: Save, source: Source, state: bytes | None) -> None:
    decider = Job(None, source)
    asyncio.run(save(learnt(5)).saving.restore_learnt(decider))
    assert decider.state == state


def test_one_checkpoint_is_saved_at_a_time_while_training_goes_on(save: Save) -> None:
    async def scenario() -> None:
        training, decider = save(), Job(None)
        training.may_write.clear()
        for iteration in (1, 2, 3):
            training.state.progress.iteration = iteration
            await training.saving.save_if_due(DUE, decider)
        assert training.saving.last(0.0) == (None, None)
        training.may_write.set()
        await until(lambda: training.saving.last(0.0)[0] == 1)
        while training.saving.last(0.0)[0] == 1:  # for a moment it is still being saved
            await training.saving.save_if_due(DUE, decider)
            await asyncio.sleep(0)
        assert training.saving.last(0.0)[0] == 3

    asyncio.run(scenario())


def test_a_write_that_hangs_is_seen_and_does_not_keep_a_training_from_ending(save: Save) -> None:
    async def scenario() -> None:
        training = save(last_seconds=0.1)
        training.may_write.clear()
        training.state.progress.iteration = 1
        await training.saving.save_if_due(DUE, Job(None))
        await until(lambda: training.disk.busy_seconds > 0)
        assert not await training.saving.save_last(Job(None))
        training.may_write.set()  # a thread that hangs would keep the test
        await until(lambda: training.folder.newest() is not None)

    asyncio.run(scenario())


def test_the_last_checkpoint_is_tried_again_until_there_is_room(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(iteration: int, state: dict[str, Any]) -> Path:
        if next(attempts) < 2:
            raise OSError(28, "No space left on device")
        return original(iteration, state)

    monkeypatch.setattr(checkpointing, "RETRY_SECONDS", 0.01)
    training, attempts = save(), count()
    original = training.folder.write
    monkeypatch.setattr(training.folder, "write", write)
    training.state.progress.iteration = 7
    assert asyncio.run(training.saving.save_last(Job(None)))
    assert training.saving.last(0.0)[0] == 7


def test_a_disk_that_stays_full_does_not_keep_a_training_from_ending(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = save(last_seconds=0.1)
    monkeypatch.setattr(training.folder, "write", Mock(side_effect=OSError(28, "No space left on device")))
    assert not asyncio.run(training.saving.save_last(Job(None)))


def test_the_last_checkpoint_is_saved_once(save: Save) -> None:
    async def scenario() -> None:
        training, decider = save(), Job(None)
        training.state.progress.iteration = 7
        await training.saving.save_if_due(DUE, decider)
        await training.saving.save_last(decider)
        written = training.saving.last(0.0)
        await training.saving.save_last(decider)
        assert training.saving.last(0.0) == written
        assert written[0] == 7

    asyncio.run(scenario())


def test_a_training_that_has_diverged_is_not_saved(save: Save) -> None:
    training = save()
    training.state.model.vector.fill_(torch.inf)
    asyncio.run(training.saving.save_last(Job(None)))
    assert training.folder.newest() is None
