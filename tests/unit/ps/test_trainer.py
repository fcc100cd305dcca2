"""Whatever ends a training, what it has learnt until then is saved, unless it is half of an iteration."""

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch

from dbw.v1.parameter_server_pb2 import GradientHeader
from dbw_ps.aggregate import Aggregate, Moments, WholeGradient
from dbw_ps.checkpoint import CheckpointFolder, CheckpointWriter
from dbw_ps.checkpointing import Checkpointing
from dbw_ps.collector import GradientCollector
from dbw_ps.members import Members
from dbw_ps.metrics import Metrics
from dbw_ps.model import FlatModel
from dbw_ps.optimiser import Optimiser
from dbw_ps.options import PsOptions
from dbw_ps.outliers import Outliers
from dbw_ps.progress import Progress, TrainingState
from dbw_ps.publisher import Publisher
from dbw_ps.rounds import End, Rounds
from dbw_ps.trainer import Trainer
from dbw_runtime.disk_watch import DiskWatch
from tests import models

FAILS_AT = 3  # the iteration in which something goes wrong that nobody expected


class FailingAggregate(Aggregate):
    """Fails before it has the mean."""

    averaged = 0

    def finish(self) -> Moments:
        if self.averaged == FAILS_AT:
            raise RuntimeError("in the aggregate")
        self.averaged += 1
        return super().finish()


class FailingOptimiser(Optimiser):
    """Fails half-way through a step."""

    stepped = 0

    def step(self, squared_norm: float) -> None:
        super().step(squared_norm)
        if self.stepped == FAILS_AT:
            raise RuntimeError("in the optimiser")
        self.stepped += 1


class FailingMetrics(Metrics):
    """Fails when an iteration is over."""

    def iterated(self, end: End, phases: dict[str, float]) -> None:
        if end.iteration == FAILS_AT:
            raise RuntimeError("in the metrics")
        super().iterated(end, phases)


class Training:
    """A training with one worker, of which one part fails."""

    def __init__(self, path: Path, part: str) -> None:
        options = PsOptions(model="tests.models:tiny", policy="sync")
        self._model = FlatModel(models.tiny())
        optimiser = (FailingOptimiser if part == "optimiser" else Optimiser)(self._model, "sgd:lr=0.1")
        state = TrainingState(self._model, optimiser, Progress())
        self._members = Members(secrets.token_urlsafe, 1e9)
        aggregate = (FailingAggregate if part == "aggregate" else Aggregate)(self._model.gradient, self._model.buffers)
        self._collector = GradientCollector(Rounds(0), self._members, aggregate, Outliers(0.0))
        compute = ThreadPoolExecutor(1)
        self.folder = CheckpointFolder(path)
        writer = CheckpointWriter(self.folder, 0, 0)
        checkpoints = Checkpointing(options, writer, state, self._members, compute, DiskWatch())
        self._publisher = Publisher()
        metrics = (FailingMetrics if part == "metrics" else Metrics)("training")
        self._trainer = Trainer(options, state, self._collector, self._publisher, compute, metrics, checkpoints)
        self.first = self._model.vector.clone()

    async def run(self) -> None:
        """Train until something fails."""
        worker, _ = self._members.join("worker", 0.0)
        self._trainer.membership_changed(worker)
        training = asyncio.ensure_future(self._trainer.run(lambda worker: None))
        for version in range(FAILS_AT + 1):
            publication = await self._publisher.newer(version - 1)
            gradient = torch.ones(len(self._model.gradient))
            header = GradientHeader(version=publication.version)
            self._collector.use(worker, WholeGradient(header, [gradient], [], 1.0))
        await training

    @property
    def saved(self) -> dict[int, torch.Tensor]:
        """The parameters of the newest checkpoint, by its iteration."""
        found = self.folder.newest()
        assert found is not None
        model = FlatModel(models.tiny())
        model.load_state_dict(found[1]["model"])
        assert found[1]["optimiser"]["steps"] == found[0]
        return {found[0]: model.vector}


@pytest.mark.parametrize(("part", "iteration"), [("metrics", FAILS_AT + 1), ("optimiser", 0), ("aggregate", 0)])
def test_what_was_learnt_is_saved_whatever_fails_unless_it_is_half_of_an_iteration(
    tmp_path: Path, part: str, iteration: int
) -> None:
    training = Training(tmp_path, part)
    with closing(training.folder):
        with pytest.raises(RuntimeError, match=f"in the {part}"):
            asyncio.run(training.run())
        ((saved, parameters),) = training.saved.items()
    assert saved == iteration
    assert torch.allclose(parameters, training.first - 0.1 * iteration)
