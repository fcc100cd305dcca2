"""No backup workers."""

from dataclasses import dataclass
from typing import ClassVar

from dbw_controller.core.policies.policy import Choice, Observation
from dbw_controller.core.reasons import Input, Reason


@dataclass(frozen=True)
class Sync:
    """Chooses k = n in every iteration."""

    inputs: ClassVar[frozenset[Input]] = frozenset()

    def choose(self, seen: Observation) -> Choice:
        """Choose all workers that are alive."""
        return Choice(seen.workers, Reason.ALL_WORKERS, f"all {seen.workers} workers, as always")
