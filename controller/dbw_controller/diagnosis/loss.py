"""Whether the loss is a mean."""

import math
from collections import deque

import numpy as np

from dbw_controller.diagnosis.ended import Ended
from dbw_controller.diagnosis.finding import FindingKind, Problem

# Changes of k that are compared with those of the loss.
CHANGES = 40
# How much steadier the loss divided by k must be than the loss. A mean is steadier than its k-th part.
STEADIER = 4.0


class Loss:
    """How the logarithms of k and of the loss change."""

    def __init__(self) -> None:
        self._changes: deque[tuple[float, float]] = deque(maxlen=CHANGES)

    def judge(self, ended: Ended) -> Problem | None:
        """Tell if the loss moves in proportion to k."""
        now, after = ended.summary, ended.following
        if after is None or now.k == after.k or not now.loss or not after.loss:
            return None
        if not 0 < after.loss / now.loss < math.inf:  # negative, or not a number
            return None
        self._changes.append((math.log(after.k / now.k), math.log(after.loss / now.loss)))
        if len(self._changes) < CHANGES or not self._moves_with_k():
            return None
        return FindingKind.LOSS_IS_A_SUM, (
            f"In the last {CHANGES} changes of k the loss went up and down in proportion to k. A mean does not depend "
            "on how many losses it is of: report the sum of the averaged workers' losses divided by k."
        )

    def _moves_with_k(self) -> bool:
        """Whether the loss divided by k is steadier: in most changes, so that a few jumps do not decide it."""
        changes = np.array(self._changes)
        k, loss = (changes - changes.mean(axis=0)).T
        return bool(STEADIER * np.median(np.abs(loss - k)) < np.median(np.abs(loss)))
