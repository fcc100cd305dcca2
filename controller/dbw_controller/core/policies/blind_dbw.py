"""Blind DBW, the paper's variant that knows nothing of gradients (Section 4)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dbw_controller.core.policies.greedy import greedy_choice, require_loss_increase_factor
from dbw_controller.core.policies.policy import Choice, Observation
from dbw_controller.core.reasons import Input


@dataclass(frozen=True)
class BlindDbw:
    """Chooses the k with the largest k per second, whatever the state of the training. The first k is n."""

    loss_increase_factor: float = 1.01  # β

    inputs: ClassVar = frozenset({Input.LOSS, Input.LATE_ARRIVALS})

    def __post_init__(self) -> None:
        require_loss_increase_factor(self.loss_increase_factor)

    def choose(self, seen: Observation) -> Choice:
        """Compare k / T̂_k."""
        return greedy_choice(seen, np.arange(1.0, seen.workers + 1), self.loss_increase_factor)
