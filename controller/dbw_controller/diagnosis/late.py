"""Whether arrivals after the end of their iteration are reported."""

from dbw_controller.diagnosis.ended import Ended
from dbw_controller.diagnosis.finding import ROW, FindingKind, Problem
from dbw_controller.events import EndCause
from dbw_controller.job import LATE_ITERATIONS


class LateArrivals:
    """The iterations since any arrival was late, as far as they waited for fewer than all workers."""

    def __init__(self) -> None:
        self.hear()

    def hear(self) -> None:
        """Take note of a late arrival."""
        self._iterations = self._most_k = 0
        self._workers: set[int] = set()  # that came in time, where they have numbers

    def judge(self, ended: Ended) -> Problem | None:
        """Tell if none has been late for long, and not just because the other workers hang or are very slow."""
        summary = ended.summary
        if ended.seconds.size > summary.k:
            self.hear()
        elif summary.k + summary.lost_gradients < ended.live_workers:
            self._iterations += summary.end_cause is not EndCause.NO_MORE_EXPECTED
            self._most_k = max(self._most_k, summary.k)
            self._workers |= ended.workers
        # Of workers that have numbers it is known whether more of them work than are waited for.
        if self._iterations <= (ROW if self._workers else LATE_ITERATIONS) or 0 < len(self._workers) <= self._most_k:
            return None
        return FindingKind.LATE_ARRIVALS_MISSING, (
            f"In the last {self._iterations} iterations that waited for fewer than all workers no arrival was late. "
            "Report arrivals after the end of an iteration as well, under that iteration: they tell how long it takes "
            "to wait for more. If the other workers are not alive, report the membership."
        )
