"""The wait for an iteration's gradients: until k are in, or the decision's deadline has passed and at least one is.

Like conversation.py, this holds no clock: it is told how long ago the parameters were published.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dbw.v1.iteration_pb2 import END_CAUSE_DEADLINE
from dbw_controller.client.conversation import Summary

# k falls when workers are lost, of which a queue does not tell.
LONGEST_PAUSE = 1.0
CLOCK_RESOLUTION = 1e-6  # seconds; less cannot be waited for


class Wait(NamedTuple):
    """How far the wait for gradients has come. Times are seconds since the parameters were published."""

    k: int  # how many gradients to wait for
    deadline: float | None
    arrived: Sequence[float]  # when gradients of this iteration did

    @property
    def missing(self) -> int:
        """How many gradients are still to be waited for, if there is time."""
        return max(self.k - len(self.arrived), 0)

    def remaining(self, elapsed: float) -> float | None:
        """How long to wait for the next gradient: 0 if the iteration is over, None for as long as it takes."""
        if not self.missing:
            return 0.0
        if self.deadline is None or not self.arrived:
            return None
        left = self.deadline - elapsed
        return left if left > CLOCK_RESOLUTION else 0.0

    def pause(self, elapsed: float) -> float:
        """How long to wait for the next gradient, and then to look again whether workers were lost."""
        remaining = self.remaining(elapsed)
        return LONGEST_PAUSE if remaining is None else min(remaining, LONGEST_PAUSE)

    def completed(self, summary: Summary) -> Summary:
        """A summary, with what the wait tells where the caller does not."""
        k = summary.get("k", min(len(self.arrived), self.k))
        known = Summary(k=k)
        if self.deadline is not None and 1 <= k <= len(self.arrived) and self._was_cut_short(k, self.deadline):
            known |= {"end_cause": END_CAUSE_DEADLINE, "duration_seconds": max(self.deadline, self.arrived[k - 1])}
        return known | summary

    def _was_cut_short(self, k: int, deadline: float) -> bool:
        """Whether fewer gradients were averaged than decided because the next one had not arrived at the deadline."""
        return k < self.k and all(seconds > deadline for seconds in self.arrived[k : k + 1])
