"""A job that a controller decides for."""

from dbw.v1.iteration_pb2 import EndCause
from dbw_controller.client import AsyncTrainingJob
from dbw_ps.decider import FinishedIteration, Source


class RemoteDecider:
    """Adapts the controller's client to what a training needs."""

    def __init__(self, job: AsyncTrainingJob) -> None:
        self._job = job
        self.set_workers, self.open, self.close = job.set_workers, job.open, job.close
        self.export_state, self.import_state = job.export_state, job.import_state

    @property
    def k(self) -> int:
        """How many gradients to wait for in this iteration."""
        return self._job.k

    @property
    def deadline_seconds(self) -> float | None:
        """How long this iteration may last, where the controller decided that."""
        decision = self._job.decision
        return decision.deadline_seconds if decision is not None and decision.HasField("deadline_seconds") else None

    @property
    def source(self) -> Source:
        """Where this iteration's k comes from."""
        return Source.FALLBACK if self._job.on_fallback else Source.CONTROLLER

    async def end_iteration(self, finished: FinishedIteration) -> None:
        """Report an iteration, and get the decision for the next, if it comes in time."""
        for iteration, worker, seconds in finished.arrivals:
            self._job.arrived(seconds, worker, iteration)
        end = finished.end
        await self._job.end_iteration(
            k=end.k,
            duration_seconds=end.seconds,
            end_cause=EndCause.Value(f"END_CAUSE_{end.cause.name}"),
            published_seconds=finished.published,
            lost_gradients=end.lost,
            learning_rate=finished.learning_rate,
            effective_learning_rate=finished.effective_learning_rate,
            **finished.moments._asdict(),
        )
