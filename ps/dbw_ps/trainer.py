"""The training: publish parameters, wait for k gradients, update, and again."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import torch

from dbw_controller.client.settings import whole_state
from dbw_ps.aggregate import Aggregate, Moments
from dbw_ps.checkpoint import CheckpointWriter
from dbw_ps.decider import Decider, FinishedIteration, Source
from dbw_ps.gradient import IncomingGradient
from dbw_ps.members import Member, Members
from dbw_ps.metrics import Metrics
from dbw_ps.model import FlatModel
from dbw_ps.optimiser import Optimiser
from dbw_ps.progress import Goal, Progress
from dbw_ps.publisher import Publication, Publisher, serialise
from dbw_ps.rounds import Arrival, End, Rounds, Verdict
from dbw_ps.training_log import TrainingLog

log = logging.getLogger(__name__)
T = TypeVar("T")
TELL_SECONDS = 10.0  # between lines about how training goes


class HopelessError(Exception):
    """Training cannot go on; the text says why, and what to do."""


class Plan(NamedTuple):
    """How a training is run."""

    job: str
    goal: Goal
    min_workers: int  # that must have joined before it begins
    max_wait: float | None  # the longest iteration, in seconds
    make_decider: Callable[[Sequence[int], int], Decider]  # for these workers, from this iteration on


class Trainer:
    """Runs the iterations of one training, in one event loop; what takes long is computed in a thread beside it."""

    def __init__(
        self,
        plan: Plan,
        model: FlatModel,
        optimiser: Optimiser,
        aggregate: Aggregate,
        members: Members,
        metrics: Metrics,
        progress: Progress,
        checkpoints: CheckpointWriter | None = None,
        training_log: TrainingLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.members, self.progress, self.checkpoints = model, members, progress, checkpoints
        self.publisher = Publisher()
        self.rounds = Rounds(progress.iteration, plan.max_wait)
        self.decider: Decider | None = None  # as soon as training has begun
        self.k = 0  # how many gradients the iteration under way waits for
        self.now = clock
        self.plan, self._optimiser, self._aggregate, self._metrics = plan, optimiser, aggregate, metrics
        self._log = training_log
        self._began = clock() - progress.seconds
        self._compute = ThreadPoolExecutor(1, "compute")
        # Adding is done while gradients come in: more threads would only take processors away from that.
        self._sum = ThreadPoolExecutor(1, "sum", initializer=lambda: torch.set_num_threads(1))
        self._adding: list[asyncio.Future[None]] = []
        self._happened = asyncio.Event()  # anything that may begin or end an iteration
        self._stopping = False
        self._saving: asyncio.Task[None] | None = None
        self._tell_at = clock() + TELL_SECONDS
        self.ended = asyncio.Event()  # the iteration under way; another event for each

    @property
    def is_finished(self) -> bool:
        """Whether training is over."""
        return self.publisher.current is not None and self.publisher.current.finished

    def joined(self, member: Member) -> None:
        """A worker has joined."""
        self.rounds.join(member.number)
        self._membership_changed()

    def left(self, member: Member) -> None:
        """A worker has left, or was given up."""
        self.rounds.leave(member.number)
        self._membership_changed()

    def _membership_changed(self) -> None:
        if self.decider is not None:
            self.decider.set_workers(self.members.live)
        self._happened.set()

    def arrived(self, member: Member, gradient: IncomingGradient) -> Verdict:
        """A gradient is complete. A late one is not noted yet."""
        verdict = self.rounds.verdict(member.number, gradient.header.version)
        if verdict is Verdict.USED:
            self.rounds.arrive(member.number, gradient.header.version, self.now())
            member.used += 1
            loop = asyncio.get_running_loop()
            self._adding.append(loop.run_in_executor(self._sum, self._aggregate.add, gradient))
            self._happened.set()
        return verdict

    def late(self, member: Member, version: int) -> None:
        """A gradient comes too late to be used, and is not waited for."""
        self.rounds.arrive(member.number, version, self.now())
        member.late += 1

    def completed(self, member: Member, version: int, interrupted: bool) -> None:
        """A worker is done with a gradient that it does not send."""
        if not interrupted:
            self.rounds.complete(member.number, version, self.now())
        member.late += 1
        self._happened.set()

    def rejected(self, member: Member, version: int) -> None:
        """A gradient makes no sense."""
        self.rounds.reject(member.number, version)
        member.lost += 1
        self._happened.set()

    def lost(self, member: Member, version: int) -> None:
        """A gradient was broken off."""
        self.rounds.lose(member.number, version)
        member.lost += 1
        self._happened.set()

    async def run(self) -> None:
        """Train until the goal is reached, or `stop` is called."""
        first = await self._in_thread(self._serialise)
        if first.finished:
            self.publisher.publish(first)
            return
        while len(self.members.live) < self.plan.min_workers and not self._stopping:
            await self._something()
        if self._stopping:
            return
        log.info(
            "training begins",
            extra={
                "job": self.plan.job,
                "iteration": self.progress.iteration,
                "live_workers": len(self.members.live),
            },
        )
        self.decider = self.plan.make_decider(self.members.live, self.progress.iteration)
        await self.decider.open()
        if self.progress.job_state is not None and self.decider.source is not Source.FALLBACK:
            await self.decider.import_state(self.progress.job_state)
        self._began = self.now() - self.progress.seconds
        self._publish(first, self.decider)
        try:
            while not self.is_finished and await self._iterate(self.decider):
                pass
        except HopelessError:
            await self._save_last()
            raise
        await self._save_last()

    def stop(self) -> None:
        """Let `run` return at the next point from which training can be resumed."""
        self._stopping = True
        self._happened.set()

    async def _save_last(self) -> None:
        """Write what training ends with, or can be resumed from, unless that was done."""
        if self._saving is not None:
            await self._saving
        if self.checkpoints is not None and self.progress.iteration != self.checkpoints.last_iteration:
            state = await self._in_thread(self._capture)
            if state is not None:
                await self._save(state)

    async def finish(self) -> None:
        """Let everything go, once `run` has returned."""
        if self._saving is not None:
            await self._saving
        if self.checkpoints is not None:
            self.checkpoints.close()
        if self.decider is not None:
            await self.decider.close(delete=self.is_finished)
        self._sum.shutdown()
        self._compute.shutdown()

    def _publish(self, publication: Publication, decider: Decider) -> None:
        """Begin an iteration, unless training is over."""
        self.publisher.publish(publication)
        if not publication.finished:
            self._published, self.k = self.now(), decider.k
            self.rounds.begin(decider.k, self._published, decider.deadline_seconds)

    async def _iterate(self, decider: Decider) -> bool:
        """Go through the iteration that has begun; returns whether it came to its end."""
        while (end := self.rounds.end(self.now())) is None:
            if self._stopping:
                return False
            self._require_hope()
            await self._something(self.rounds.wake_at)
        self.ended.set()
        self.ended = asyncio.Event()
        ended = self.now()
        await asyncio.gather(*self._adding)
        self._adding.clear()
        moments = await self._in_thread(self._aggregate.finish)
        aggregated = self.now()
        self.progress.ended(moments.loss, aggregated - self._began)
        rate = self._optimiser.learning_rate  # both before the step, which changes them
        effective = self._optimiser.effective_learning_rate(moments.mean_squared_norm)
        arrivals = self.rounds.take_arrivals()
        self._write_log(end, moments, rate, arrivals)
        (publication, phases), _ = await asyncio.gather(
            self._in_thread(self._update, moments),
            decider.end_iteration(FinishedIteration(end, moments, arrivals, self._published, rate, effective)),
        )
        phases |= {"wait": end.seconds, "aggregate": aggregated - ended}
        self._metrics.iterated(end, phases)
        self._publish(publication, decider)
        self._tell_progress(end.k)
        if self.checkpoints is not None and self._saving is None and self.checkpoints.due(end.iteration + 1, ended):
            state = await self._in_thread(self._capture)
            if state is not None:
                self._saving = asyncio.ensure_future(self._save(state))
        return True

    def _tell_progress(self, k: int) -> None:
        """Log how training goes, now and then."""
        if self.now() >= self._tell_at:
            self._tell_at = self.now() + TELL_SECONDS
            about = {"iteration": self.progress.iteration, "loss": self.progress.loss, "k": k}
            log.info("training", extra={"job": self.plan.job, **about, "live_workers": len(self.rounds.live)})

    def _require_hope(self) -> None:
        if self.rounds.is_hopeless:
            raise HopelessError(
                f"none of the gradients of all {len(self.rounds.live)} workers for iteration {self.progress.iteration} "
                "can be used, perhaps because training diverges: lower the learning rate, or see what workers compute"
            )

    async def _something(self, until: float | None = None) -> None:
        """Wait for something to happen, or for a time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if until is None else max(until - self.now(), 0.0)):
                await self._happened.wait()
        self._happened.clear()

    def _update(self, moments: Moments) -> tuple[Publication, dict[str, float]]:
        begin = self.now()
        self._optimiser.step(moments.mean_squared_norm)
        updated = self.now()
        publication = self._serialise()
        return publication, {"update": updated - begin, "publish": self.now() - updated}

    def _serialise(self) -> Publication:
        return serialise(self.model, self.progress.iteration, self.plan.goal.is_reached(self.progress))

    def _write_log(self, end: End, moments: Moments, rate: float, arrivals: Iterable[Arrival]) -> None:
        if self._log is not None:
            entry = {
                "iteration": end.iteration,
                "seconds": self.progress.seconds,
                "published_seconds": self._published - self._began,
                "k": end.k,
                "decided_k": self.k,
                "live_workers": len(self.rounds.live),
                "end_cause": end.cause.name.lower(),
                "duration_seconds": end.seconds,
                "lost_gradients": end.lost,
                "learning_rate": rate,
                **moments._asdict(),
                "arrivals": [arrival._asdict() for arrival in arrivals],
            }
            self._log.write(entry)

    def _capture(self) -> dict[str, Any] | None:
        """What a checkpoint holds; None if training has diverged, and nobody could go on from here."""
        if not self.model.vector.isfinite().all():
            return None
        return self.progress.checkpoint(self.model, self._optimiser, self.members.numbers)

    async def _save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint, with what the job has learnt by now or, if that cannot be had, at the last one."""
        assert self.checkpoints is not None
        try:
            if self.decider is not None and self.decider.source is not Source.FALLBACK:
                await self._exchange_learnt(self.decider)
            state["job_state"] = self.progress.job_state
            if await asyncio.wrap_future(self.checkpoints.save(state["iteration"], state)):
                log.info("checkpoint written", extra={"job": self.plan.job, "iteration": state["iteration"]})
        finally:
            self._saving = None

    async def _exchange_learnt(self, decider: Decider) -> None:
        """Take over what the job has learnt; or give it back, if the controller has lost it."""
        found, known = await decider.export_state(), self.progress.job_state
        if found is None:
            return
        if known is not None and learnt_iterations(found) < learnt_iterations(known):
            log.info("giving back what the controller has lost", extra={"job": self.plan.job})
            await decider.import_state(known)
        else:
            self.progress.job_state = found

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._compute, function, *arguments)


def learnt_iterations(state: bytes) -> int:
    """From how many iterations a job has learnt what it exported."""
    return whole_state(state).header.learnt_iterations
