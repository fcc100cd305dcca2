"""A job that a controller decides for."""

import logging
from typing import Any

import grpc

from dbw.v1.controller_pb2 import GetJobRequest
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import EndCause
from dbw.v1.job_pb2 import Job
from dbw_controller.client import AsyncDbwClient, AsyncTrainingJob
from dbw_controller.client.settings import ATTACH_SECONDS
from dbw_ps.decider import FinishedIteration, Source
from dbw_runtime.failure import describe, reason_of

log = logging.getLogger(__name__)


async def iterations_of(client: AsyncDbwClient, job: str) -> int:
    """How far a controller's job is; 0 if there is no such job, or the controller cannot be asked."""
    connection = client.connection()
    channel = connection.open_aio()
    stub: Any = ControllerServiceStub(channel)
    try:
        request, metadata = GetJobRequest(job=job), connection.metadata()
        found: Job = (await stub.GetJob(request, timeout=ATTACH_SECONDS, metadata=metadata)).job
        return max(found.decision.iteration, found.learnt_iterations)
    except (grpc.RpcError, OSError) as error:
        if reason_of(error) != "JOB_NOT_FOUND":
            log.warning("the controller does not say whether it has the job: %s", describe(error), extra={"job": job})
        return 0
    finally:
        await channel.close()


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
        return self._job.deadline_seconds

    @property
    def source(self) -> Source:
        """Where this iteration's k comes from."""
        return Source.FALLBACK if self._job.on_fallback else Source.CONTROLLER

    @property
    def replaced(self) -> bool:
        """Whether another process has taken the job over."""
        return self._job.replaced

    async def end_iteration(self, finished: FinishedIteration) -> None:
        """Report an iteration, and get the decision for the next, or go on with the last one if that takes too long."""
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
