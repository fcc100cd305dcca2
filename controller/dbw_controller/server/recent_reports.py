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
# How much is kept. The last is the number of arrivals, for each worker.
MAX_ITERATIONS, MAX_REPORTS, MAX_ARRIVALS_A_WORKER = 128, 4096, 256


class AppliedReport(NamedTuple):
    """A report, with the newest decision before it, its answer, and the membership after it."""

    report: Report
    before: Decision
    answer: Decision | None
    membership: Membership
    arrivals: int  # how many there are in the report


class RecentReports:
    """As many of the last reports as there is room for."""

    def __init__(self) -> None:
        self._reports: deque[AppliedReport] = deque()
        self._arrivals = 0  # of all reports

    def __len__(self) -> int:
        return len(self._reports)

    def add(self, report: Report, before: Decision, answer: Decision | None, membership: Membership) -> None:
        """Keep a report, and drop the oldest ones if there are too many or they are too old."""
        reports, arrivals = self._reports, sum(len(batch.seconds) for batch in report.arrivals)
        reports.append(AppliedReport(report, before, answer, membership, arrivals))
        self._arrivals += arrivals
        first = before.iteration - MAX_ITERATIONS + 1
        max_arrivals = MAX_ARRIVALS_A_WORKER * max(membership.live_workers, 16)
        while reports and (
            reports[0].before.iteration < first or len(reports) > MAX_REPORTS or self._arrivals > max_arrivals
        ):
            self._arrivals -= reports.popleft().arrivals

    def clear(self) -> None:
        """Forget all reports, because what comes next does not continue them."""
        self._reports.clear()
        self._arrivals = 0

    def diagnose(self, sync_mode: SyncMode) -> Diagnosis:
        """What looks wrong in them. May be called in a thread while reports are added."""
        diagnosis = Diagnosis(sync_mode)
        for applied in list(self._reports):
            diagnosis.observe(applied.report, applied.before, applied.answer, applied.membership)
        return diagnosis
