"""Dynamic backup workers, the paper's algorithm."""

from dataclasses import dataclass
from typing import ClassVar

from dbw_controller.core.policies.greedy import first_choice, greedy_choice, require_loss_increase_factor
from dbw_controller.core.policies.policy import Choice, Observation
from dbw_controller.core.reasons import Input


@dataclass(frozen=True)
class Dbw:
    """Chooses the k with the largest estimated loss decrease per second. The first k is n."""

    loss_increase_factor: float = 1.01  # β

    inputs: ClassVar = frozenset({Input.LOSS, Input.LEARNING_RATE, Input.MOMENTS, Input.LATE_ARRIVALS})

    def __post_init__(self) -> None:
        require_loss_increase_factor(self.loss_increase_factor)

    def choose(self, seen: Observation) -> Choice:
        """Compare Ĝ_k / T̂_k, once both can be estimated."""
        gains = seen.gain.gains(seen.workers)
        return first_choice(seen) if gains is None else greedy_choice(seen, gains, self.loss_increase_factor)
