"""What is judged: an iteration that ended."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dbw_controller.core.decision import Decision
from dbw_controller.core.kernels import Array
from dbw_controller.core.reasons import Input
from dbw_controller.core.reports import Arrivals, IterationSummary, Membership


@dataclass
class Ended:
    """An iteration that ended, with what was told of it by the end of the next one."""

    summary: IterationSummary
    asked: Decision | None  # which it says was in use, perhaps an earlier iteration's; None if it is not known
    missing_inputs: frozenset[Input]
    memberships: list[Membership]  # all since it began
    arrivals: list[Arrivals] = field(default_factory=list)
    following: IterationSummary | None = None  # the next iteration's; None if it was lost

    @property
    def live_workers(self) -> int:
        """How many there are, as was told last."""
        return self.memberships[-1].live_workers

    @property
    def steady(self) -> bool:
        """Whether nobody came or went."""
        return len(self.memberships) == 1

    @cached_property
    def workers(self) -> set[int]:
        """Those that arrived, as far as they were told apart."""
        return {worker for a in self.arrivals if a.workers is not None for worker in a.workers}

    @cached_property
    def seconds(self) -> Array:
        """When gradients arrived, by rank; NaN where it was not reported."""
        seconds = np.full(max((a.preceding + a.seconds.size for a in self.arrivals), default=0), np.nan)
        for a in reversed(self.arrivals):  # what was told first counts
            seconds[a.preceding : a.preceding + a.seconds.size] = a.seconds
        return seconds
