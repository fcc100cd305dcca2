"""Whether times are seconds since the publication of their iteration's parameters."""

import math

from dbw_controller.core.diagnosis.ended import Ended
from dbw_controller.core.diagnosis.finding import ROW, FindingKind, Problem

# Even a cluster that slows down is faster again for one iteration of so many.
GROWING = 100
# Nobody waits ten hours for every gradient, and none comes within a microsecond.
LONGEST_SECONDS, SHORTEST_SECONDS = 36_000.0, 1e-6
# An iteration ends before the next one is published. Milliseconds look 1000 times as long as that takes, less what is
# done in between.
LONGEST_FACTOR = 30.0


class Clock:
    """Durations, of iteration after iteration."""

    def __init__(self) -> None:
        self._last = math.inf
        self._growing = 0  # how often in a row an iteration lasted longer than the one before
        self._impossible = 0  # how many durations in a row are not seconds

    def judge(self, ended: Ended) -> Problem | None:
        """Tell what is wrong with the origin of times, or else with their unit."""
        duration, last = ended.summary.duration_seconds, self._last
        self._last = duration
        self._growing = self._growing + 1 if duration > last else 0
        possible = SHORTEST_SECONDS <= duration <= longest_seconds(ended) or duration == 0  # of a virtual clock
        self._impossible = 0 if possible else self._impossible + 1
        if self._growing >= (GROWING if possible else ROW):
            return FindingKind.TIMES_NOT_SINCE_PUBLICATION, (
                f"Each of the last {self._growing} iterations lasted longer than the one before, the last one "
                f"{duration:.6g} s. Count `seconds` and `duration_seconds` from when the parameters of their own "
                "iteration were published."
            )
        if self._impossible < ROW:
            return None
        return FindingKind.TIMES_NOT_SECONDS, (
            f"The last {self._impossible} durations are longer or shorter than is possible in seconds: the last one "
            f"was {duration:.6g}. Report all times in seconds, not in milli-, micro- or nanoseconds."
        )


def longest_seconds(ended: Ended) -> float:
    """What an iteration may seem to last, given when the next one was published."""
    begin, end = ended.summary.published_seconds, ended.following.published_seconds if ended.following else None
    gap = math.inf if begin is None or end is None else end - begin
    return min(LONGEST_SECONDS, LONGEST_FACTOR * gap) if gap > 0 else LONGEST_SECONDS
