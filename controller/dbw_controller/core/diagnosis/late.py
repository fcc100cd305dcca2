"""Whether arrivals after the end of their iteration are reported."""

from dbw_controller.core.diagnosis.ended import Ended
from dbw_controller.core.diagnosis.finding import ROW, FindingKind, Problem
from dbw_controller.core.job import LATE_ITERATIONS
from dbw_controller.core.reports import EndCause


class LateArrivals:
    """What should have been heard of since any arrival was late.

    A worker that came in time, then not, and then again, has finished a gradient late in between. Where workers have no
    numbers it can only be counted how many iterations waited for fewer than all.
    """

    def __init__(self) -> None:
        self.hear()

    def hear(self) -> None:
        """Take note of a late arrival."""
        self._iterations = self._unheard = 0
        self._in_time: dict[int, int] = {}  # the last iteration that each worker came in time for
        self._next = 0

    def judge(self, ended: Ended) -> Problem | None:
        """Tell if none has been late for long, and not just because the other workers hang or are very slow."""
        summary = ended.summary
        if ended.seconds.size > summary.k:
            self.hear()
        elif summary.k + summary.lost_gradients < ended.live_workers:
            self._iterations += summary.end_cause is not EndCause.NO_MORE_EXPECTED
        self._follow(ended)
        missing = self._unheard > ROW if ended.workers else self._iterations > LATE_ITERATIONS
        if not missing:
            return None
        return FindingKind.LATE_ARRIVALS_MISSING, (
            f"In the last {self._iterations} iterations that waited for fewer than all workers no arrival was late. "
            "Report arrivals after the end of an iteration as well, under that iteration: they tell how long it takes "
            "to wait for more. If the other workers are not alive, report the membership."
        )

    def _follow(self, ended: Ended) -> None:
        """Count gradients that workers must have finished late, if nothing else can have become of them."""
        iteration = ended.summary.iteration
        if iteration != self._next or ended.summary.lost_gradients or not ended.steady:
            self._in_time.clear()
        self._unheard += sum(self._in_time.get(worker, iteration) < iteration - 1 for worker in ended.workers)
        self._in_time.update(dict.fromkeys(ended.workers, iteration))
        self._next = iteration + 1
