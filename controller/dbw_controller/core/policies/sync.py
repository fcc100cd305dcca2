"""No backup workers."""

from dataclasses import dataclass
from typing import ClassVar

from dbw_controller.core.decision import Input, Reason
from dbw_controller.core.policies.policy import Choice, Observation


@dataclass(frozen=True)
class Sync:
    """Chooses k = n in every iteration."""

    inputs: ClassVar[frozenset[Input]] = frozenset()

    def choose(self, seen: Observation) -> Choice:
        """Choose all workers that are alive."""
        return Choice(seen.workers, Reason.ALL_WORKERS, f"all {seen.workers} workers, as always")
