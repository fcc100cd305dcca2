"""AdaSync (Dutta et al.), the policy that the paper compares with in Section 4.5."""

import math
from dataclasses import dataclass
from typing import ClassVar

from dbw_controller.core.policies.policy import Choice, Observation
from dbw_controller.core.reasons import Input, Reason
from dbw_controller.core.reports import MAX_WORKERS
from dbw_controller.core.validation import require


@dataclass(frozen=True)
class AdaSync:
    """Chooses a k that grows as the loss falls, from `initial_k` on.

    For shifted exponential round trips the best k satisfies K²/(n−K) = A·F_0/F_t; A is such that the first K is
    `initial_k`.
    """

    initial_k: int = 1

    inputs: ClassVar = frozenset({Input.LOSS})

    def __post_init__(self) -> None:
        require(1 <= self.initial_k <= MAX_WORKERS, "policy.initial_k", self.initial_k, f"between 1 and {MAX_WORKERS}")

    def choose(self, seen: Observation) -> Choice:
        """Solve the quadratic for K, and round."""
        first, loss, n = seen.first_loss, seen.loss, seen.workers
        if first is None or loss is None or first <= 0:
            reason = Reason.NOT_ENOUGH_DATA if seen.learnt_iterations else Reason.FIRST_ITERATION
            return Choice(min(self.initial_k, n), reason, f"{reason.value}: the initial k, {self.initial_k}")
        k = max(1, round(self.root(first / loss, n))) if loss > 0 else n
        return Choice(k, Reason.LOSS_RATIO, f"the loss is {loss:.4g} and was {first:.4g} at first: k = {k}")

    def root(self, ratio: float, workers: int) -> float:
        """K of K²/(n−K) = c, where c = A·F_0/F_t for a given F_0/F_t."""
        if self.initial_k >= workers:
            return workers
        c = self.initial_k**2 / (workers - self.initial_k) * ratio
        # The usual formula's difference of two large numbers, rationalised.
        return 2 * workers / (1 + math.sqrt(1 + 4 * workers / c)) if c > 0 else 0.0
