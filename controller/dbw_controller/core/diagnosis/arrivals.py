"""Whether arrivals agree with each other, with the end of their iteration, and with the workers that are alive."""

import numpy as np

from dbw_controller.core.diagnosis.ended import Ended
from dbw_controller.core.diagnosis.finding import ROW, FindingKind, Problem

# Times may be read from the clock at slightly different places of a parameter server.
CLOCK_TOLERANCE = 0.01
# How near an arrival is to the end that is right at it, in parts of the distance between arrivals: by chance 1 of 10.
AT_END_FRACTION = 0.1


def wrong_arrivals(ended: Ended) -> Problem | None:
    """Times that fall with the rank, or an end before the k-th arrival."""
    seconds, k, duration = ended.seconds, ended.summary.k, ended.summary.duration_seconds
    falls = seconds[1:] < (1 - CLOCK_TOLERANCE) * seconds[:-1]
    if falls.any():
        at = int(falls.argmax())
        return FindingKind.ARRIVALS_INCONSISTENT, (
            f"In iteration {ended.summary.iteration} a gradient that came after {seconds[at]:.6g} s has a lower rank "
            f"than one after {seconds[at + 1]:.6g} s. Report arrivals in their order, with how many came before in "
            "`preceding`."
        )
    if seconds.size < k or not seconds[k - 1] > (1 + CLOCK_TOLERANCE) * duration:  # NaN where it was not reported
        return None
    return FindingKind.ARRIVALS_INCONSISTENT, (
        f"Iteration {ended.summary.iteration} averaged {k} gradients and ended after {duration:.6g} s, but the {k}-th "
        f"came after {seconds[k - 1]:.6g} s. Report as k those that were averaged, and all times since the same "
        "publication, in the same unit."
    )


class ExtraArrivals:
    """Whether iterations end at an arrival after the k-th.

    An end after the k-th arrival may be due to the update, in which time others arrive; but not right at one of them.
    """

    def __init__(self) -> None:
        self._row = 0

    def judge(self, ended: Ended) -> Problem | None:
        """Tell if they do in a long row. Iterations in which the k-th arrival is near the end do not count."""
        seconds, k, duration = ended.seconds, ended.summary.k, ended.summary.duration_seconds
        if seconds.size < k or not seconds[k - 1] < (1 - CLOCK_TOLERANCE) * duration:
            return None
        before_end = seconds[seconds <= duration]
        last, extra = float(np.max(before_end)), before_end.size - k
        averaged = extra > ended.summary.lost_gradients  # those may have arrived, and were rejected
        at_arrival = averaged and duration - last <= AT_END_FRACTION * (last - seconds[k - 1]) / extra
        self._row = self._row + 1 if at_arrival else 0
        if self._row < ROW:
            return None
        return FindingKind.ARRIVALS_INCONSISTENT, (
            f"Iteration {ended.summary.iteration} averaged {k} gradients but ended with the {k + extra}-th, "
            f"after {duration:.6g} s; the {k}-th came after {seconds[k - 1]:.6g} s. Report as k what was averaged, "
            "and as the duration when the last of them arrived."
        )


def strangers(ended: Ended) -> Problem | None:
    """Arrivals of workers that were never alive since the iteration began."""
    unknown = ended.workers.difference(*(membership.workers or () for membership in ended.memberships))
    if not unknown or any(membership.workers is None for membership in ended.memberships):
        return None
    return FindingKind.MEMBERSHIP_OUT_OF_DATE, (
        f"In iteration {ended.summary.iteration} gradients came from {len(unknown)} workers that are not among the "
        f"{ended.live_workers} live ones: {min(unknown)}, for example. Report the membership whenever workers come or "
        "go, with the numbers that their arrivals have."
    )


def too_many(ended: Ended) -> Problem | None:
    """More gradients than workers, in an iteration in which nobody came or went."""
    most = max(ended.seconds.size, ended.summary.k)
    if not ended.steady or most <= ended.live_workers:
        return None
    return FindingKind.MEMBERSHIP_OUT_OF_DATE, (
        f"Iteration {ended.summary.iteration} had {most} gradients of {ended.live_workers} live workers. Report the "
        "membership whenever workers come or go, and arrivals under their own iteration."
    )
