"""One training: a cluster on a virtual clock, a model that learns, and something that decides k."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import torch

from dbw_controller.client import EVERY_DECISION, AsyncDbwClient
from dbw_controller.core.job import Job
from dbw_controller.core.spec import SyncMode
from dbw_experiments.laboratory.cluster import Cluster
from dbw_experiments.laboratory.history import History
from dbw_experiments.laboratory.learning import Learner, Replay, Step
from dbw_experiments.laboratory.membership import parse_membership
from dbw_experiments.laboratory.runs import Outcome, Run
from dbw_ps.decider import Decider, FinishedIteration, Source
from dbw_ps.decisions import spec_message_of, spec_of
from dbw_ps.embedded import EmbeddedDecider
from dbw_ps.remote import RemoteDecider
from dbw_worker.delays import parse_delay
from dbw_worker.devices import find_device

PATIENCE = 60.0  # seconds that a controller has for a decision: on a virtual clock nothing goes on without it


class ControllerLostError(Exception):
    """The controller was not there for a decision."""


class PunctualDecider(RemoteDecider):
    """Regards a decision that is late as none: a training must not depend on how long it took."""

    @property
    def source(self) -> Source:
        """Where this iteration's k comes from."""
        decision = self._job.decision
        return Source.CONTROLLER if decision and decision.iteration == self._job.iteration else Source.FALLBACK


def in_process(run: Run) -> EmbeddedDecider:
    """Decides in this process."""
    spec = spec_of(run.policy, SyncMode(run.sync_mode), run.half_life)
    return EmbeddedDecider("laboratory", spec, _first_workers(run))


def over_network(run: Run, target: str) -> RemoteDecider:
    """Asks a controller, which gets a new job for it."""
    spec = spec_message_of(run.policy, SyncMode(run.sync_mode), run.half_life)
    client = AsyncDbwClient(target, deadline=PATIENCE, patience_share=EVERY_DECISION)
    return PunctualDecider(client.job(f"laboratory-{uuid4()}", _first_workers(run), spec))


class Place(NamedTuple):
    """Where runs take place."""

    device: str = "cpu"  # that computes gradients
    traces: Path = Path()  # the folder of traces
    controller: str | None = None  # HOST:PORT of one that decides; otherwise this process does


HERE = Place()


def execute(runs: Sequence[Run], place: Place = HERE) -> list[Outcome]:
    """Go through runs that differ in their delays only."""
    torch.set_num_threads(1)
    replay = Replay(Learner(runs[0], find_device(place.device)))
    return [asyncio.run(_execute(run, replay, place)) for run in runs]


async def _execute(run: Run, replay: Replay, place: Place) -> Outcome:
    replay.rewind()
    if place.controller is not None:
        return await train(run, replay.step, over_network(run, place.controller), place.traces)
    decider = in_process(run)
    return await train(run, replay.step, decider, place.traces, decider.job)


async def train(run: Run, step: Step, decider: Decider, traces: Path = Path(), observed: Job | None = None) -> Outcome:
    """Train until the target is reached, or the time is up; the estimates of a job in this process are recorded."""
    delay, changes = parse_delay(run.delay, traces), parse_membership(run.membership, run.workers)
    cluster = Cluster(run.workers, delay, run.seed, SyncMode(run.sync_mode), changes)
    history = History(run)
    await decider.open()
    try:
        while not history.is_over:
            if decider.source is Source.FALLBACK:
                raise ControllerLostError(f"there is no decision for iteration {history.iterations}")
            if observed is not None:
                history.decided(observed)
            iteration = cluster.iterate(decider.k, decider.deadline_seconds)
            # Where all have the same data, it does not matter whose gradients these are: they are called by the order
            # in which they came. So what static policies learn is the same whatever the delays are.
            learnt = step(iteration.workers if run.split else range(iteration.end.k))
            history.ended(iteration, learnt, cluster.now)
            if changes:
                decider.set_workers(cluster.live)
            known = iteration.end, learnt.moments, iteration.arrivals, iteration.published
            rates = learnt.learning_rate, learnt.effective_learning_rate
            await decider.end_iteration(FinishedIteration(*known, *rates))
        return history.outcome()
    finally:
        await decider.close(delete=True)


def _first_workers(run: Run) -> list[int]:
    """Those that are there when it begins."""
    away = {change.worker for change in parse_membership(run.membership, run.workers) if change.seconds == 0}
    return [worker for worker in range(run.workers) if worker not in away]
