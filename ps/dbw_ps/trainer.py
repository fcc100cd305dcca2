"""The training: publish parameters, wait for k gradients, update, and again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from dbw_ps.aggregate import Moments
from dbw_ps.checkpointing import Checkpointing
from dbw_ps.collector import GradientCollector
from dbw_ps.decider import Decider, FinishedIteration, JobTakenOverError
from dbw_ps.decisions import make_decider
from dbw_ps.log_writer import LogWriter
from dbw_ps.members import Member
from dbw_ps.metrics import Metrics
from dbw_ps.options import PsOptions
from dbw_ps.progress import Status, TrainingState
from dbw_ps.publisher import Publication, Publisher, serialise
from dbw_ps.rounds import Fate
from dbw_runtime.server import UnsavedError

log = logging.getLogger(__name__)
LOG_SECONDS = 10.0  # between lines about how training goes
WAITING_LOG_SECONDS = 30.0  # between lines that say for how many workers it waits
LOOK_SECONDS = 0.5  # how often it looks whether it has waited for long enough


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
        training_log: LogWriter | None = None,
    ) -> None:
        self._options, self._state, self._collector, self._publisher = options, state, collector, publisher
        self._compute, self._metrics, self._checkpoints, self._log = compute, metrics, checkpoints, training_log
        self._progress, self.now = state.progress, collector.now
        self._decider: Decider | None = None  # as soon as training has begun
        self._k = 0  # how many gradients the iteration under way waits for
        self._began = self._published = 0.0  # on this process's clock, as if all of training had been in this process
        self._log_at = self.now() + LOG_SECONDS
        self._started = self.now()
        self._final: Publication | None = None  # the parameters that training ends with
        self._gives_way = False  # ends because another process has taken the job over
        self._is_saved = True  # whether the last checkpoint and all of the training log could be written

    def status(self) -> Status:
        """How training goes."""
        source = None if self._decider is None else self._decider.source
        progress = self._progress
        workers = len(self._collector.live), self._collector.stalled, self._missing_workers
        last = (None, None) if self._checkpoints is None else self._checkpoints.last(self.now())
        return Status(
            progress.iteration, progress.seconds, progress.loss, *workers, self._k, source, *last, self._is_replaced
        )

    @property
    def _is_replaced(self) -> bool:
        return self._decider is not None and self._decider.replaced

    def give_way_if_replaced(self) -> None:
        """Let `run` end with JobTakenOverError if another process has taken the job over, and options say so."""
        if self._options.on_replaced == "exit" and self._is_replaced:
            self._gives_way = True
            self.stop()

    def membership_changed(self, member: Member) -> None:
        """A worker has joined, or its session has ended."""
        self._collector.membership_changed(member)
        self.live_workers_changed()

    def live_workers_changed(self) -> None:
        """Another number of workers is alive than before, or others."""
        self._collector.wake()
        if self._decider is not None:
            self._decider.set_workers(self._collector.live)

    def gradient_lost(self, member: Member, version: int) -> None:
        """The upload of a gradient has broken off."""
        self._collector.failed(member, version, Fate.LOST)

    async def prepare(self) -> None:
        """Make sure, before anything is changed, that a training without a checkpoint is a new one."""
        if self._checkpoints is not None:
            await self._checkpoints.save_first()

    async def run(self, start_over: Callable[[int], object]) -> None:
        """Train until the goal is reached, or `stop` is called. Tells which workers are to join again."""
        first = await asyncio.get_running_loop().run_in_executor(self._compute, self._serialise)
        if first.finished:
            self._publisher.publish(first)
            return
        if not await self._wait_for_workers():
            return
        log.info("training begins", extra=self._about())
        decider = self._decider = make_decider(self._options, self._collector.live, self._progress.iteration)
        await decider.open()
        if self._checkpoints is not None:
            await self._checkpoints.restore_learnt(decider)
            await self._checkpoints.save_begun(decider)
        self._began = self.now() - self._progress.seconds
        self._publish(first, decider)
        try:
            while self._final is None and await self._iterate(decider, start_over):
                pass
        except Exception:  # the caller says what it was; what was learnt until then may be good
            await self._save_last(decider)
            raise
        await self._save_last(decider)
        if self._final is not None:
            self._require_saved()  # otherwise the last iterations are to be done again, by the same workers
            self._publisher.publish(self._final)
        elif self._gives_way:
            raise JobTakenOverError(self._options.job)

    @property
    def _missing_workers(self) -> int:
        """How many more workers must join before training begins; after a restart, some time later one is enough."""
        if self._decider is not None or self._publisher.is_finished:
            return 0
        waits_for_all = not self._state.is_resumed or self.now() < self._started + self._options.rejoin_seconds
        return max((self._options.min_workers if waits_for_all else 1) - len(self._collector.live), 0)

    async def _wait_for_workers(self) -> bool:
        """Wait for enough workers; returns whether they are there, and we were not told to stop."""
        log_at = self._started + WAITING_LOG_SECONDS
        while (missing := self._missing_workers) and not self._collector.is_stopping:
            if self.now() >= log_at:
                log.warning("waiting for workers", extra=self._about() | {"missing_workers": missing})
                log_at += WAITING_LOG_SECONDS
            await self._collector.wait_for_change(self.now() + LOOK_SECONDS)
        if not self._collector.is_stopping and len(self._collector.live) < self._options.min_workers:
            log.warning("going on with fewer workers than --min-workers", extra=self._about())
        return not self._collector.is_stopping

    async def _save_last(self, decider: Decider) -> None:
        saving: list[Awaitable[bool]] = []
        if self._checkpoints is not None:
            saving.append(self._checkpoints.save_last(decider))
        if self._log is not None:
            saving.append(self._log.flush(self._options.last_checkpoint_seconds))
        self._is_saved = all(await asyncio.gather(*saving))

    def _require_saved(self) -> None:
        if not self._is_saved:
            text = f"the disk did not take the checkpoint of iteration {self._progress.iteration}, or the training log"
            raise UnsavedError(text)

    def stop(self) -> None:
        """Let `run` return at the next point from which training can be resumed."""
        self._collector.stop()

    async def finish(self) -> None:
        """Close everything, once `run` has returned; UnsavedError says what the disk did not take."""
        if self._decider is not None:
            await self._decider.close(delete=self._publisher.is_finished)
        self._collector.close()
        self._require_saved()

    def _publish(self, publication: Publication, decider: Decider) -> None:
        """Begin an iteration; if training is over, workers learn it once all is saved, because they leave then."""
        if publication.finished:
            self._final = publication
            return
        self._publisher.publish(publication)
        self._k = decider.k
        self._published = self._collector.begin(decider.k, decider.deadline_seconds)

    async def _iterate(self, decider: Decider, start_over: Callable[[int], object]) -> bool:
        """Go through the iteration that has begun; returns whether it came to its end."""
        end = await self._collector.wait_for_end(start_over)
        if end is None:
            return False
        ended = self.now()
        losses = self._collector.take_losses()
        loss = self._progress.ended(losses, ended - self._began, self._collector.usual_norms)
        moments, arrivals = await self._collector.finish(self._compute)
        aggregated = self.now()
        moments = moments._replace(loss=loss)
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
        self._progress.model_is_behind = False
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
