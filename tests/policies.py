"""Policies that a controller of the tests loads as those of its operator."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from dbw_controller.core.policies import Choice, Observation, Sync

SECRET = "a secret of the implementation"  # noqa: S105 (nothing but a text to look for)


@dataclass(frozen=True)
class Failing(Sync):
    """Has a bug that shows after the first iteration."""

    def choose(self, seen: Observation) -> Choice:
        """Fail, or wait for all workers."""
        if seen.learnt_iterations:
            raise RuntimeError(SECRET)
        return super().choose(seen)


@dataclass(frozen=True)
class Gated(Sync):
    """Takes as long as a test wants: until somebody has opened the pipe `GATE` for writing, and closed it again."""

    def choose(self, seen: Observation) -> Choice:
        """Wait, and then for all workers."""
        if seen.learnt_iterations == 1:  # a controller decides in its loop where that was fast the last time
            time.sleep(0.05)
        if seen.learnt_iterations > 1:
            Path(os.environ["GATE"]).read_bytes()
        return super().choose(seen)
