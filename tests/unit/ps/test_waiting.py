"""A training begins with --min-workers, and goes on with fewer where it was resumed. It says how many it misses."""

import asyncio
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from dbw_ps.aggregate import Aggregate
from dbw_ps.collector import GradientCollector
from dbw_ps.members import Members
from dbw_ps.metrics import Metrics
from dbw_ps.model import FlatModel
from dbw_ps.optimiser import Optimiser
from dbw_ps.options import PsOptions
from dbw_ps.outliers import Outliers
from dbw_ps.progress import Progress, TrainingState
from dbw_ps.publisher import Publisher
from dbw_ps.rounds import Rounds
from dbw_ps.trainer import Trainer
from dbw_runtime.disk_watch import DiskWatch
from tests import models
from tests.simulation.loop import VirtualLoop


class Training:
    """A training on a virtual clock, which was resumed or not."""

    def __init__(self, is_resumed: bool) -> None:
        self.loop = VirtualLoop(Random(0))  # type: ignore[abstract]
        options = PsOptions(model="tests.models:tiny", min_workers=3, rejoin_seconds=100.0, policy="sync")
        model = FlatModel(models.tiny())
        state = TrainingState(model, Optimiser(model, "sgd:lr=0.1"), Progress(), is_resumed)
        self._members = Members(secrets.token_urlsafe, 30.0)
        aggregate = Aggregate(model.gradient, model.buffers)
        collector = GradientCollector(Rounds(0), self._members, aggregate, Outliers(0.0), self.loop.time)
        compute, self._metrics = ThreadPoolExecutor(1), Metrics("waiting")
        self._trainer = Trainer(options, state, collector, Publisher(), compute, self._metrics)
        self._metrics.observe(self._trainer.status, None, None, DiskWatch(self.loop.time))
        self.running = self.loop.spawn(None, self._trainer.run(lambda worker: None))

    def join(self, worker: str) -> None:
        """A worker joins."""
        self._trainer.membership_changed(self._members.join(worker, self.loop.time())[0])

    def wait(self, seconds: float) -> None:
        """Let some time pass."""
        self.loop.run(self.loop.spawn(None, asyncio.sleep(seconds)), lambda: None)

    def stop(self) -> None:
        """Stop, as SIGTERM does."""
        self._trainer.stop()
        self.loop.run(self.running, lambda: None)

    @property
    def missing(self) -> float | None:
        """What its metric says."""
        value = self._metrics.registry.get_sample_value("dbw_ps_missing_workers")
        assert value == self._trainer.status().missing_workers
        return value

    @property
    def has_begun(self) -> bool:
        """Whether it trains."""
        return self._trainer.status().source is not None


def warnings(log: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    found = [record for record in log.records if record.levelno == logging.WARNING]
    return [(record.getMessage(), getattr(record, "missing_workers", 0)) for record in found]


def test_at_its_first_start_a_training_waits_for_all_and_says_so_at_intervals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    training = Training(is_resumed=False)
    training.wait(29.0)
    assert training.missing == 3
    assert warnings(caplog) == []
    training.wait(4.0)
    training.join("a")
    training.wait(1000.0)
    assert training.missing == 2
    assert not training.has_begun
    assert warnings(caplog) == [("waiting for workers", 3)] + 33 * [("waiting for workers", 2)]
    training.join("b")
    training.join("c")
    training.wait(1.0)
    assert training.has_begun
    assert training.missing == 0
    training.stop()


def test_a_resumed_training_goes_on_with_those_that_are_there(caplog: pytest.LogCaptureFixture) -> None:
    training = Training(is_resumed=True)
    training.join("a")
    training.wait(99.0)
    assert not training.has_begun
    assert training.missing == 2
    training.wait(2.0)
    assert training.has_begun
    assert training.missing == 0
    waiting = ("waiting for workers", 2)
    assert warnings(caplog) == [waiting, waiting, waiting, ("going on with fewer workers than --min-workers", 0)]
    training.stop()


def test_a_resumed_training_needs_one_worker() -> None:
    training = Training(is_resumed=True)
    training.wait(1000.0)
    assert training.missing == 1
    training.join("a")
    training.wait(1.0)
    assert training.has_begun
    training.stop()


def test_a_resumed_training_does_not_wait_when_all_are_back(caplog: pytest.LogCaptureFixture) -> None:
    training = Training(is_resumed=True)
    for worker in ("a", "b", "c"):
        training.join(worker)
    training.wait(1.0)
    assert training.has_begun
    assert warnings(caplog) == []
    training.stop()


@pytest.mark.parametrize("is_resumed", [False, True])
def test_one_that_waits_can_be_stopped(is_resumed: bool) -> None:
    training = Training(is_resumed)
    training.wait(1.0)
    training.stop()
    assert not training.has_begun
