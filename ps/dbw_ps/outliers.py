"""Which gradients are so much longer than others that something must be wrong with them."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Set
from statistics import median_low

RECENT_NORMS = 3  # of each worker: the second one of an unusual norm moves its median
MIN_NORMS = 16  # before this many are known, the usual norm is not trusted for longer
EARLIER = -1  # what was usual before a restart counts as a worker's
FALL = 0.9999  # of the usual norm with each gradient, at most: late in training a rare one is as long as all once were


class Outliers:
    """Knows how long gradients usually are: the median over workers of the median of each one's last norms.

    Norms of gradients that are refused count too. So one worker of three or more cannot move what is usual, whatever it
    sends, but a change that most workers see is followed at their second gradient. `usual` is the usual norm, to go on
    from later. A ratio of 0 refuses nothing.
    """

    def __init__(self, max_ratio: float, usual: float = 0.0) -> None:
        self._max_ratio, self.usual = max_ratio, usual
        self._norms: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._sorted: list[float] = []  # the medians
        self._count = 0
        if usual:
            self._add(EARLIER, usual)
            self._count = MIN_NORMS

    def is_outlier(self, worker: int, norm: float) -> bool:
        """Take note of the norm of a worker's gradient; returns whether it is far above what is usual."""
        if not norm or not self._max_ratio:  # gradients of zero say nothing about others
            return False
        self._add(worker, norm)
        median = self._sorted[(len(self._sorted) - 1) // 2]
        self._count += 1
        self.usual = max(median, FALL * self.usual if self._count > MIN_NORMS else 0.0)
        return norm > self._max_ratio * self.usual

    def _add(self, worker: int, norm: float) -> None:
        norms = self._norms.setdefault(worker, deque(maxlen=RECENT_NORMS))
        norms.append(norm)
        self._forget_median(worker)
        self._medians[worker] = median_low(norms)
        insort(self._sorted, self._medians[worker])

    def _forget_median(self, worker: int) -> None:
        if (median := self._medians.pop(worker, None)) is not None:
            del self._sorted[bisect_left(self._sorted, median)]

    def keep_only(self, workers: Set[int]) -> None:
        """Go by what these workers have sent lately, as no others send gradients."""
        for worker in self._norms.keys() - workers:
            self._forget_median(worker)
            del self._norms[worker]
        self.usual, self._count = 0.0, 0
