"""Dynamic backup workers, the paper's algorithm, and the choice (Section 3.3) that other policies share with it."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dbw_controller.core.kernels import Array, Column, column, compiled
from dbw_controller.core.policies.policy import Choice, Observation
from dbw_controller.core.reasons import Input, Reason
from dbw_controller.core.validation import require


@dataclass(frozen=True)
class Dbw:
    """Chooses the k with the largest estimated loss decrease per second. The first k is n."""

    loss_increase_factor: float = 1.01  # β

    inputs: ClassVar = frozenset({Input.LOSS, Input.LEARNING_RATE, Input.MOMENTS, Input.LATE_ARRIVALS})

    def __post_init__(self) -> None:
        _require_loss_increase_factor(self.loss_increase_factor)

    def choose(self, seen: Observation) -> Choice:
        """Compare Ĝ_k / T̂_k, once both can be estimated."""
        gains = seen.gain.gains(seen.workers)
        return first_choice(seen) if gains is None else greedy_choice(seen, gains, self.loss_increase_factor)


@dataclass(frozen=True)
class BlindDbw:
    """The paper's variant that knows nothing of gradients (Section 4): the largest k per second. The first k is n."""

    loss_increase_factor: float = 1.01  # β

    inputs: ClassVar = frozenset({Input.LOSS, Input.LATE_ARRIVALS})

    def __post_init__(self) -> None:
        _require_loss_increase_factor(self.loss_increase_factor)

    def choose(self, seen: Observation) -> Choice:
        """Compare k / T̂_k."""
        return greedy_choice(seen, np.arange(1.0, seen.workers + 1), self.loss_increase_factor)


def _require_loss_increase_factor(value: float) -> None:
    """Refuse a β that would take a falling loss for a growing one."""
    require(1 <= value < math.inf, "policy.loss_increase_factor", value, "finite and at least 1")


def first_choice(seen: Observation, k: int | None = None) -> Choice:
    """All workers, or k of them, until there is something to compare."""
    reason = Reason.NOT_ENOUGH_DATA if seen.learnt_iterations else Reason.FIRST_ITERATION
    if k is None or k == seen.workers:
        return Choice(seen.workers, reason, f"{reason.value}: all {seen.workers} workers")
    return Choice(k, reason, f"{reason.value}: {k} of {seen.workers} workers")


def greedy_choice(seen: Observation, gains: Array, loss_increase_factor: float) -> Choice:
    """The largest gain per second (e:greedy), but more than before where the loss has grown (e:greedy2)."""
    durations = seen.durations
    known, k = best_rate(column(gains), column(durations.seconds))
    if not known:
        return first_choice(seen)
    if k == 0:
        k, reason = seen.workers, Reason.NO_POSITIVE_GAIN
        explanation = f"no k has a positive gain: all {k} workers"
    else:
        reason = Reason.BEST_RATE
        gain, seconds = gains.item(k - 1), durations.seconds.item(k - 1)
        explanation = f"k = {k} has the largest gain per second: {gain:.4g} in {seconds:.4g} s"
    if seen.previous_k is not None and k <= seen.previous_k < seen.workers and loss_grew(seen, loss_increase_factor):
        explanation = f"the loss grew from {seen.loss_before:.4g} to {seen.loss:.4g}; otherwise {explanation}"
        k, reason = seen.previous_k + 1, Reason.LOSS_INCREASED
    return Choice(k, reason, explanation, gains, durations)


@compiled
def best_rate(gains: Column, seconds: Column) -> tuple[bool, int]:
    """Whether any k has a known gain and duration; and the one with the largest rate, 0 if no gain is positive.

    Of several with the same rate it is the largest: more gradients in the same time are never worse.
    """
    known = False
    best_k, best = 0, -math.inf
    for i in range(len(gains)):
        if math.isfinite(gains[i]) and not math.isnan(seconds[i]):
            known = True
            if gains[i] > 0.0:
                rate = gains[i] / seconds[i] if seconds[i] != 0.0 else math.inf
                if rate >= best:
                    best_k, best = i + 1, rate
    return known, best_k


def loss_grew(seen: Observation, factor: float) -> bool:
    """Whether F̂_{t−1} > β F̂_{t−2}; where the loss is negative, by as much relative to its size."""
    if seen.loss is None or seen.loss_before is None:
        return False
    return seen.loss - seen.loss_before > (factor - 1) * abs(seen.loss_before)
