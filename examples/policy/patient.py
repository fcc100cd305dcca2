"""A policy of one's own: wait for all workers that come within a few times the time of the first half of them.

    dbw controller --policies examples/policy/patient.py:Patient
    dbw ps --model mlp --policy examples/policy/patient.py:Patient:factor=1.5
    dbw experiment run examples/policy/scenario.toml

The controller decides so for every job that asks for the policy by that name; a parameter server without a controller
decides so by itself; the laboratory compares the policy with others, and computes again when this file has changed.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dbw_controller.core.policies import Choice, Observation
from dbw_controller.core.reasons import Input, Reason


@dataclass(frozen=True)
class Patient:
    """Chooses the largest k whose expected duration is at most `factor` times that of half of the workers."""

    factor: float = 2.0

    inputs: ClassVar[frozenset[Input]] = frozenset({Input.LATE_ARRIVALS})

    def choose(self, seen: Observation) -> Choice:
        """Choose k_t; all workers until durations are known."""
        seconds, half = seen.durations.seconds, (seen.workers + 1) // 2
        if np.isnan(seconds[half - 1]):
            return Choice(seen.workers, Reason.NOT_ENOUGH_DATA, f"no durations are known: all {seen.workers} workers")
        patience = self.factor * seconds[half - 1]
        k = int(np.sum(seconds <= patience))  # durations never fall with k, and NaN is not at most anything
        why = f"{k} of {seen.workers} workers come within {patience:.3g} s, {self.factor:g} times the time of {half}"
        return Choice(k, Reason.CUSTOM, why, durations=seen.durations)
