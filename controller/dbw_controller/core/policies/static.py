"""A fixed number of backup workers, or none."""

from dataclasses import dataclass
from typing import ClassVar

from dbw_controller.core.policies.policy import Choice, Observation
from dbw_controller.core.reasons import Input, Reason
from dbw_controller.core.reports import MAX_WORKERS
from dbw_controller.core.validation import require


@dataclass(frozen=True)
class Static:
    """Chooses the same k in every iteration, or all workers where fewer are alive."""

    k: int

    inputs: ClassVar[frozenset[Input]] = frozenset()

    def __post_init__(self) -> None:
        require(1 <= self.k <= MAX_WORKERS, "policy.k", self.k, f"between 1 and {MAX_WORKERS}")

    def choose(self, seen: Observation) -> Choice:
        """Choose k, if there are as many."""
        if seen.workers < self.k:
            return Choice(seen.workers, Reason.FIXED, f"k is fixed to {self.k}: all {seen.workers} workers")
        return Choice(self.k, Reason.FIXED, f"k is fixed to {self.k}")


@dataclass(frozen=True)
class Sync:
    """Chooses k = n in every iteration."""

    inputs: ClassVar[frozenset[Input]] = frozenset()

    def choose(self, seen: Observation) -> Choice:
        """Choose all workers that are alive."""
        return Choice(seen.workers, Reason.ALL_WORKERS, f"all {seen.workers} workers, as always")
