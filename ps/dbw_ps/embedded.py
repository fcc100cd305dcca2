"""A job that this process decides for itself, without messages."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence

from dbw.v1.controller_pb2 import ExportJobStateResponse
from dbw_controller.client.settings import join_state, whole_state
from dbw_controller.core.decision import Decision
from dbw_controller.core.errors import JobError
from dbw_controller.core.job import Job, warm_up
from dbw_controller.core.reports import Arrivals, EndCause, GradientMoments, IterationSummary, Membership, Report
from dbw_controller.core.spec import JobSpec
from dbw_controller.wire.state import export_state, import_state
from dbw_ps.decider import FinishedIteration, Source
from dbw_ps.rounds import REMEMBERED_ITERATIONS, Arrival

log = logging.getLogger(__name__)


class EmbeddedDecider:
    """Reports to a `Job` in this process what `RemoteDecider` reports to a controller, with the same decisions."""

    source, replaced = Source.EMBEDDED, False

    def __init__(self, name: str, spec: JobSpec, workers: Sequence[int], iteration: int = 0) -> None:
        self._name = name
        self._membership = self._reported = _membership(workers)
        self.job = Job(spec, self._membership, iteration)
        self._arrived: Counter[int] = Counter()  # how many arrivals of each iteration were reported
        self._previous_k: int | None = None
        self._use(self.job.decision())

    def _use(self, decision: Decision) -> None:
        self.k = max(min(decision.k, self._membership.live_workers), 1)
        self.deadline_seconds = decision.deadline_seconds

    def set_workers(self, workers: Sequence[int]) -> None:
        """Take note of who is alive; the job learns it when the iteration ends."""
        self._membership = _membership(workers)
        self.k = max(min(self.k, self._membership.live_workers), 1)

    async def open(self) -> None:
        """Compile what decisions need."""
        await asyncio.to_thread(warm_up)

    async def end_iteration(self, finished: FinishedIteration) -> None:
        """Report an iteration, and get the decision for the next."""
        membership = self._membership if self._membership != self._reported else None
        arrivals = list(self._batches(finished.arrivals))
        decision = self.job.report(Report(arrivals, _summary(finished, self._previous_k), membership))
        assert decision is not None, "the report has a summary"
        asyncio.get_running_loop().call_soon(self.job.catch_up)  # while workers compute
        self._reported, self._previous_k = self._membership, finished.end.k
        self._arrived.pop(finished.end.iteration - REMEMBERED_ITERATIONS, None)  # no more of these are reported
        self._use(decision)

    def _batches(self, arrivals: Sequence[Arrival]) -> Iterator[Arrivals]:
        """Group arrivals by iteration."""
        versions: dict[int, list[Arrival]] = {}
        for arrival in arrivals:
            versions.setdefault(arrival.iteration, []).append(arrival)
        for version, batch in versions.items():
            _, workers, seconds = zip(*batch, strict=True)
            yield Arrivals(version, seconds, self._arrived[version], workers)  # type: ignore[arg-type] # becomes an array
            self._arrived[version] += len(batch)

    async def export_state(self) -> bytes | None:
        """All that the job has learnt, in the format that controllers export."""
        header, data = export_state(self._name, self.job)
        return join_state([ExportJobStateResponse(header=header, data=data)])

    async def import_state(self, state: bytes) -> bool:
        """Replace what the job has learnt by an exported state; returns whether that worked."""
        try:
            whole = whole_state(state)
            self._use(import_state(self.job, whole.header, whole.data))
        except (JobError, OSError) as error:
            log.warning("the state cannot be imported: %s", error, extra={"job": self._name})
            return False
        return True

    async def close(self, delete: bool = False) -> None:
        """Nothing has to be closed, and nobody else keeps the job."""


def _membership(workers: Sequence[int]) -> Membership:
    return Membership(len(workers), workers or None)


def _summary(finished: FinishedIteration, previous_k: int | None) -> IterationSummary:
    end, effective, moments = finished.end, finished.effective_learning_rate, finished.moments._asdict()
    loss = moments.pop("loss")
    return IterationSummary(
        iteration=end.iteration,
        k=end.k,
        duration_seconds=end.seconds,
        loss=loss,
        learning_rate=finished.learning_rate if effective is None else effective,
        moments=GradientMoments(**moments),
        previous_k=previous_k,
        end_cause=EndCause[end.cause.name],
        published_seconds=finished.published,
        lost_gradients=end.lost,
    )
