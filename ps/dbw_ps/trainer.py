"""The training: publish parameters, wait for k gradients, update, and again."""

import asyncio
import logging
from concurrent.futures import Executor

from dbw_ps.aggregate import Moments
from dbw_ps.checkpointing import Checkpointing
from dbw_ps.collector import GradientCollector, NoUsableGradientsError
from dbw_ps.decider import Decider, FinishedIteration
from dbw_ps.decisions import make_decider
from dbw_ps.members import Member
from dbw_ps.metrics import Metrics
from dbw_ps.options import PsOptions
from dbw_ps.progress import Status, TrainingState
from dbw_ps.publisher import Publication, Publisher, serialise
from dbw_ps.training_log import TrainingLog

log = logging.getLogger(__name__)
LOG_SECONDS = 10.0  # between lines about how training goes


class Trainer:
    """Runs the iterations of one training, in one event loop; what takes long is done in the thread of `compute`."""

    def __init__(
        self,
        options: PsOptions,
        state: TrainingState,
        collector: GradientCollector,
        publisher: Publisher,
        compute: Executor,
        metrics: Metrics,
        checkpoints: Checkpointing | None = None,
        training_log: TrainingLog | None = None,
    ) -> None:
        self._options, self._state, self._collector, self._publisher = options, state, collector, publisher
        self._compute, self._metrics, self._checkpoints, self._log = compute, metrics, checkpoints, training_log
        self._progress, self.now = state.progress, collector.now
        self._decider: Decider | None = None  # as soon as training has begun
        self._k = 0  # how many gradients the iteration under way waits for
        self._began = self._published = 0.0  # on this process's clock, as if all of training had been in this process
        self._log_at = self.now() + LOG_SECONDS

    def status(self) -> Status:
        """How training goes."""
        source = None if self._decider is None else self._decider.source
        progress, live = self._progress, len(self._collector.live)
        last = (None, None) if self._checkpoints is None else self._checkpoints.last(self.now())
        return Status(progress.iteration, progress.seconds, progress.loss, live, self._k, source, *last)

    def membership_changed(self, member: Member) -> None:
        """A worker has joined, or its session has ended."""
        self._collector.membership_changed(member)
        if self._decider is not None:
            self._decider.set_workers(self._collector.live)

    async def run(self) -> None:
        """Train until the goal is reached, or `stop` is called."""
        first = await asyncio.get_running_loop().run_in_executor(self._compute, self._serialise)
        if first.finished:
            self._publisher.publish(first)
            return
        if not await self._collector.wait_for_workers(self._options.min_workers):
            return
        log.info("training begins", extra=self._about())
        decider = self._decider = make_decider(self._options, self._collector.live, self._progress.iteration)
        await decider.open()
        if self._checkpoints is not None:
            await self._checkpoints.restore_learnt(decider)
        self._began = self.now() - self._progress.seconds
        self._publish(first, decider)
        try:
            while not self._publisher.is_finished and await self._iterate(decider):
                pass
        except NoUsableGradientsError:
            await self._save_last(decider)
            raise
        await self._save_last(decider)

    async def _save_last(self, decider: Decider) -> None:
        if self._checkpoints is not None:
            await self._checkpoints.save_last(decider)

    def stop(self) -> None:
        """Let `run` return at the next point from which training can be resumed."""
        self._collector.stop()

    async def finish(self) -> None:
        """Close everything, once `run` has returned."""
        if self._checkpoints is not None:
            await self._checkpoints.wait()
        if self._decider is not None:
            await self._decider.close(delete=self._publisher.is_finished)
        self._collector.close()

    def _publish(self, publication: Publication, decider: Decider) -> None:
        """Begin an iteration, unless training is over."""
        self._publisher.publish(publication)
        if not publication.finished:
            self._k = decider.k
            self._published = self._collector.begin(decider.k, decider.deadline_seconds)

    async def _iterate(self, decider: Decider) -> bool:
        """Go through the iteration that has begun; returns whether it came to its end."""
        end = await self._collector.wait_for_end()
        if end is None:
            return False
        ended = self.now()
        moments, arrivals = await self._collector.finish(self._compute)
        aggregated = self.now()
        self._progress.ended(moments.loss, aggregated - self._began)
        optimiser = self._state.optimiser  # whose rates are those before the step, which changes them
        rates = optimiser.learning_rate, optimiser.effective_learning_rate(moments.mean_squared_norm)
        finished = FinishedIteration(end, moments, arrivals, self._published, *rates)
        self._write_log(finished)
        updating = asyncio.get_running_loop().run_in_executor(self._compute, self._update, moments)
        (publication, phases), _ = await asyncio.gather(updating, decider.end_iteration(finished))
        self._metrics.iterated(end, phases | {"wait": end.seconds, "aggregate": aggregated - ended})
        self._publish(publication, decider)
        if self.now() >= self._log_at:
            self._log_at = self.now() + LOG_SECONDS
            log.info("training", extra=self._about() | {"loss": self._progress.loss, "k": end.k})
        if self._checkpoints is not None:
            await self._checkpoints.save_if_due(ended, decider)
        return True

    def _about(self) -> dict[str, object]:
        live = len(self._collector.live)
        return {"job": self._options.job, "iteration": self._progress.iteration, "live_workers": live}

    def _update(self, moments: Moments) -> tuple[Publication, dict[str, float]]:
        begin = self.now()
        self._state.optimiser.step(moments.mean_squared_norm)
        updated = self.now()
        publication = self._serialise()
        return publication, {"update": updated - begin, "publish": self.now() - updated}

    def _serialise(self) -> Publication:
        finished = self._progress.has_reached(self._options)
        return serialise(self._state.model, self._progress.iteration, finished)

    def _write_log(self, finished: FinishedIteration) -> None:
        if self._log is not None:
            end = finished.end
            entry = {
                "iteration": end.iteration,
                "seconds": self._progress.seconds,
                "published_seconds": self._published - self._began,
                "k": end.k,
                "decided_k": self._k,
                "live_workers": len(self._collector.live),
                "end_cause": end.cause.name.lower(),
                "duration_seconds": end.seconds,
                "lost_gradients": end.lost,
                "learning_rate": finished.learning_rate,
                **finished.moments._asdict(),
                "arrivals": [arrival._asdict() for arrival in finished.arrivals],
            }
            self._log.write(entry)
