"""How far a training gets in virtual time while its controller is slow, or answers nothing any more."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from dbw.v1.iteration_pb2 import DECISION_REASON_BEST_RATE, Decision
from dbw_ps.decider import Source
from dbw_ps.remote import RemoteDecider
from tests.simulation.run import play
from tests.simulation.world import CONTROLLER, World, endless_training

SECONDS, WARM_UP_SECONDS, SAMPLE_SECONDS = 12.0, 1.0, 0.003
ITERATION_SECONDS = 0.04  # about


class Progress(NamedTuple):
    """What a training did in `SECONDS` seconds, after a warm-up."""

    iterations: int
    sources: list[Source]  # of k, at many times, in order
    decision: Decision | None  # in use at the end
    behind: int  # how many iterations ago that was made for

    @property
    def fallback_seconds(self) -> float:
        """How long k was no decision."""
        return self.sources.count(Source.FALLBACK) * SAMPLE_SECONDS


def simulated(
    folder: Path,
    controller: str | None = CONTROLLER,
    policy: str = "static:2",
    disturb: Callable[[World], object] = id,
    from_the_start: bool = False,
) -> Progress:
    """Let a world with one training run; it is disturbed as soon as that is warm, or from the start."""
    world, training = endless_training(folder, workers=3, controller=controller, policy=policy)

    async def scenario() -> Progress:
        if from_the_start:
            disturb(world)
        for host in world.hosts:
            host.start()
        await asyncio.sleep(0.001)
        for worker in training.workers:
            assert worker.worker is not None
            worker.worker.mean_seconds = ITERATION_SECONDS
        await asyncio.sleep(WARM_UP_SECONDS)
        assert training.service is not None
        trainer = training.service._trainer
        if not from_the_start:
            disturb(world)
        first, sources = training.iteration, []
        for _ in range(int(SECONDS / SAMPLE_SECONDS)):
            await asyncio.sleep(SAMPLE_SECONDS)
            source = trainer.status().source
            assert source is not None
            sources.append(source)
        decider, decision = trainer._decider, None
        if isinstance(decider, RemoteDecider):
            decision = decider._job.decision
        behind = 0 if decision is None else training.iteration - decision.iteration
        return Progress(training.iteration - first, sources, decision, behind)

    return play(world, scenario())


def delay(seconds: float) -> Callable[[World], object]:
    """Let messages to and from the controller take longer."""
    return lambda world: setattr(world.network.link("ps-0", CONTROLLER), "delay", seconds)


def freeze(world: World) -> None:
    """Let the controller stand still."""
    assert world.controller.process is not None
    world.controller.process.is_paused = True


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many iterations a training does that decides itself."""
    return simulated(tmp_path_factory.mktemp("alone"), controller=None).iterations


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.025, 0.2, 1.5])
def test_a_slow_controller_does_not_slow_a_training_down_and_is_no_fallback(
    tmp_path: Path, alone: int, seconds: float
) -> None:
    progress = simulated(tmp_path, disturb=delay(seconds))
    assert progress.iterations >= 0.9 * alone
    assert set(progress.sources) == {Source.CONTROLLER}
    assert progress.behind <= 2 + 3 * 2 * seconds / ITERATION_SECONDS, "decisions follow the training"


@pytest.mark.parametrize("policy", ["dbw", "dbw-plus"])
def test_a_slow_controller_learns_from_every_iteration(tmp_path: Path, policy: str) -> None:
    """Though it gets a request in one of ten iterations only: what the loss has done needs two in a row."""
    progress = simulated(tmp_path, policy=policy, disturb=delay(0.2), from_the_start=True)
    assert progress.decision is not None
    assert progress.decision.reason == DECISION_REASON_BEST_RATE


def test_a_frozen_controller_does_not_slow_a_training_down_and_becomes_a_fallback(tmp_path: Path, alone: int) -> None:
    progress = simulated(tmp_path, disturb=freeze)
    assert progress.iterations >= 0.9 * alone
    assert progress.sources[0] is Source.CONTROLLER
    assert progress.sources[-1] is Source.FALLBACK
    assert progress.fallback_seconds < SECONDS - 10.0, "only after ten seconds without an answer"
