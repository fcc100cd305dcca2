"""Whether the loss is a mean."""

import math
from collections import deque

import numpy as np

from dbw_controller.core.diagnosis.ended import Ended
from dbw_controller.core.diagnosis.finding import FindingKind, Problem

# Changes of k that are compared with those of the loss.
CHANGES = 40
# A sum grows in proportion to k, with a slope of 1; a mean has one of 0. What is above the middle by so many standard
# errors is a sum.
MIDDLE, STANDARD_ERRORS = 0.5, 3.0


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
        """Whether the slope of a line through the changes is that of a sum.

        It is how far the loss went with k over how far k went. Unlike in least squares, large jumps do not decide it.
        """
        changes = np.array(self._changes)
        k, loss = (changes - changes.mean(axis=0)).T
        distance = np.abs(k).sum()
        slope = np.sign(k) @ loss / distance
        error = np.linalg.norm(loss - slope * k) / distance
        return bool(slope - STANDARD_ERRORS * error > MIDDLE)
