"""The paper's choice (Section 3.3), for whatever is taken for the gain: DBW and blind DBW."""

import numpy as np

from dbw_controller.decision import Reason
from dbw_controller.estimators.compiled import Array
from dbw_controller.policies.policy import Choice, Observation
from dbw_controller.validation import require


def first_choice(seen: Observation) -> Choice:
    """All workers, until there is something to compare."""
    reason = Reason.NOT_ENOUGH_DATA if seen.learnt_iterations else Reason.FIRST_ITERATION
    return Choice(seen.workers, reason, f"{reason.value}: all {seen.workers} workers")


def greedy_choice(seen: Observation, gains: Array, loss_increase_factor: float) -> Choice:
    """The largest gain per second (e:greedy), but more than before where the loss has grown (e:greedy2)."""
    durations = seen.durations
    known = np.isfinite(gains) & ~np.isnan(durations.seconds)
    if not known.any():
        return first_choice(seen)
    if not (gains[known] > 0).any():
        k, reason = seen.workers, Reason.NO_POSITIVE_GAIN
        explanation = f"no k has a positive gain: all {k} workers"
    else:
        with np.errstate(all="ignore"):
            rates = np.where(known & (gains > 0), gains / durations.seconds, -np.inf)
        k, reason = int(np.argmax(rates)) + 1, Reason.BEST_RATE
        explanation = f"k = {k} has the largest gain per second: {gains[k - 1]:.4g} in {durations.seconds[k - 1]:.4g} s"
    if seen.previous_k is not None and k <= seen.previous_k < seen.workers and loss_grew(seen, loss_increase_factor):
        explanation = f"the loss grew from {seen.loss_before:.4g} to {seen.loss:.4g}; otherwise {explanation}"
        k, reason = seen.previous_k + 1, Reason.LOSS_INCREASED
    return Choice(k, reason, explanation, gains, durations)


def loss_grew(seen: Observation, factor: float) -> bool:
    """Whether F̂_{t−1} > β F̂_{t−2}; where the loss is negative, by as much relative to its size."""
    if seen.loss is None or seen.loss_before is None:
        return False
    return seen.loss - seen.loss_before > (factor - 1) * abs(seen.loss_before)


def require_loss_increase_factor(value: float) -> None:
    """Refuse a β that would take a falling loss for a growing one."""
    require(1 <= value < float("inf"), "policy.loss_increase_factor", value, "finite and at least 1")
