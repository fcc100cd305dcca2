"""The last reports of a job, kept for those who ask what is wrong with them."""

from collections import deque
from typing import NamedTuple

from dbw_controller.core.decision import Decision
from dbw_controller.core.diagnosis import MIN_SHOWN_ITERATIONS, Diagnosis
from dbw_controller.core.job import LATE_ITERATIONS
from dbw_controller.core.reports import Membership, Report
from dbw_controller.core.spec import SyncMode

# Every check needs a few iterations, each judged when the next one has ended; the slowest needs a long row before them.
MIN_ITERATIONS = MIN_SHOWN_ITERATIONS + 1
SUFFICIENT_ITERATIONS = LATE_ITERATIONS + MIN_ITERATIONS
# How much is kept. A report counts once for each batch of arrivals. The last is the number of arrivals for each worker;
# numbers of workers in a membership take as much room.
MAX_ITERATIONS, MAX_REPORTS, MAX_ARRIVALS_A_WORKER = 128, 4096, 256
BATCH_BYTES, ROW_BYTES = 800, 16  # roughly, with the report's summary


class AppliedReport(NamedTuple):
    """A report, with the newest decision before it, its answer, and the membership after it."""

    report: Report
    before: Decision
    answer: Decision | None
    membership: Membership
    batches: int  # of arrivals in the report, and at least 1
    rows: int  # in all of them, and workers of its membership


class RecentReports:
    """As many of the last reports as there is room for."""

    def __init__(self) -> None:
        self._reports: deque[AppliedReport] = deque()
        self._batches = self._rows = 0  # of all reports

    def __len__(self) -> int:
        return len(self._reports)

    @property
    def memory_bytes(self) -> int:
        """What they take, roughly."""
        return self._batches * BATCH_BYTES + self._rows * ROW_BYTES

    def add(self, report: Report, before: Decision, answer: Decision | None, membership: Membership) -> None:
        """Keep a report, and drop the oldest ones if there are too many or they are too old."""
        reports, rows = self._reports, sum(len(batch.seconds) for batch in report.arrivals)
        if report.membership is not None and report.membership.workers is not None:
            rows += len(report.membership.workers)
        batches = max(len(report.arrivals), 1)
        reports.append(AppliedReport(report, before, answer, membership, batches, rows))
        self._batches, self._rows = self._batches + batches, self._rows + rows
        first = before.iteration - MAX_ITERATIONS + 1
        max_rows = MAX_ARRIVALS_A_WORKER * max(membership.live_workers, 16)
        while reports and (reports[0].before.iteration < first or self._batches > MAX_REPORTS or self._rows > max_rows):
            oldest = reports.popleft()
            self._batches, self._rows = self._batches - oldest.batches, self._rows - oldest.rows

    def clear(self) -> None:
        """Forget all reports, because what comes next does not continue them."""
        self._reports.clear()
        self._batches = self._rows = 0

    def diagnose(self, sync_mode: SyncMode) -> Diagnosis:
        """What looks wrong in them. May be called in a thread while reports are added."""
        diagnosis = Diagnosis(sync_mode)
        for applied in list(self._reports):
            diagnosis.observe(applied.report, applied.before, applied.answer, applied.membership)
        return diagnosis
