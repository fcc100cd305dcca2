"""Which gradients are so much larger than others that something must be wrong with them.

Norms are looked at: of a gradient, and of the model's buffers that come with it. This holds no clock.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Set
from statistics import median_low
from typing import Any, NotRequired, TypedDict

RECENT_NORMS = 3  # of each worker: the second one of an unusual norm moves its median
MIN_NORMS = 16  # before this many are known, the usual norm may fall fast
MIN_FALL_FACTOR = 0.9999  # later it falls to this with each norm, at most: a rare one is as large as all were before
REMEMBERED_NORMS = 32  # a worker is forgotten when others have sent this many norms each since its last one


class NormState(TypedDict):
    """What is kept of usual norms; earlier versions did not have `agreed`."""

    usual: float
    workers: dict[int, float]
    agreed: NotRequired[dict[int, float]]


class UsualNorm:
    """The median over workers of the median of each one's last norms.

    Norms that are far above it count too. So one worker of three or more cannot move it, whatever it sends, but a
    change that most workers see is followed at their second norm. Of two workers the one with the smaller norms can
    move it, and the other one is compared with what it sent itself before that.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self.value = 0.0  # 0 if nothing is known
        self._norms: dict[int, deque[float]] = {}  # of each worker; the one whose last norm is oldest comes first
        self._medians: dict[int, float] = {}
        self._sorted: list[float] = []  # the medians
        self._agreed: dict[int, float] = {}  # of each worker, the last that was usual beside those of others
        self._count = 0
        self._last: dict[int, int] = {}  # the count at each worker's last norm
        for worker, norm in (state or {}).get("workers", {}).items():
            self._add(worker, norm)
        if self._sorted:
            assert state is not None
            self.value, self._count = state["usual"], max(self._count, MIN_NORMS)
            self._agreed.update(state.get("agreed", {}))

    @property
    def state(self) -> NormState:
        """All that is needed to go on from here later."""
        return {"usual": self.value, "workers": dict(self._medians), "agreed": dict(self._agreed)}

    @property
    def workers(self) -> Set[int]:
        """Those whose norms are known."""
        return self._norms.keys()

    def add(self, worker: int, norm: float, is_repeated: bool = False) -> None:
        """Take note of a worker's norm. One of 0 says nothing about others.

        One that `is_repeated`, because its worker was asked for a gradient again, does not make others be forgotten.
        """
        if not norm:
            return
        self._add(worker, norm, is_repeated)
        while (oldest := next(iter(self._norms))) != worker and self._is_forgotten(oldest):
            self.forget(oldest)
        median = self._sorted[(len(self._sorted) - 1) // 2]
        self.value = max(median, MIN_FALL_FACTOR * self.value if self._count > MIN_NORMS else 0.0)

    def _add(self, worker: int, norm: float, is_repeated: bool = False) -> None:
        norms = self._norms.pop(worker, None) or deque(maxlen=RECENT_NORMS)
        norms.append(norm)
        self._forget_median(worker)
        self._norms[worker], self._medians[worker] = norms, median_low(norms)
        insort(self._sorted, self._medians[worker])
        self._count += not is_repeated
        self._last[worker] = self._count

    def is_exceeded(self, worker: int, norm: float, max_ratio: float) -> bool:
        """Whether a norm, which the worker has just sent, is more than this many times what is usual."""
        if norm <= max_ratio * self.value:
            if norm and len(self._norms) > 1:
                self._agreed[worker] = min(norm, self._medians[worker])
            return False
        return len(self._norms) != 2 or norm > max_ratio * self._agreed.get(worker, 0.0)

    def _is_forgotten(self, worker: int) -> bool:
        return self._count - self._last[worker] > REMEMBERED_NORMS * len(self._norms)

    def _forget_median(self, worker: int) -> None:
        if (median := self._medians.pop(worker, None)) is not None:
            del self._sorted[bisect_left(self._sorted, median)]

    def forget(self, worker: int) -> None:
        """Do not count what a worker has sent."""
        self._forget_median(worker)
        self._norms.pop(worker, None)
        self._last.pop(worker, None)
        self._agreed.pop(worker, None)

    def keep_only(self, workers: Set[int]) -> None:
        """Go by what these workers have sent lately."""
        for worker in self.workers - workers:
            self.forget(worker)
        self.value, self._count = 0.0, 0
        self._last = dict.fromkeys(self._last, 0)


class Outliers:
    """Compares gradients, and the buffers that come with them, with what is usual. A ratio of 0 refuses nothing."""

    def __init__(self, max_ratio: float, state: Mapping[str, Any] | None = None) -> None:
        known = state or {}
        self._max_ratio = max_ratio
        self._usual = {name: UsualNorm(known.get(name)) for name in ("gradient", "buffers")}

    @property
    def state(self) -> dict[str, Any]:
        """All that is needed to go on from here later."""
        return {name: usual.state for name, usual in self._usual.items()}

    def problem(self, worker: int, gradient: float, buffers: float = 0.0, is_repeated: bool = False) -> str | None:
        """Take note of the norms of what a worker sends; returns what is wrong with them, if anything is."""
        problem = None
        for (name, usual), norm in zip(self._usual.items(), (gradient, buffers), strict=True):
            usual.add(worker, norm, is_repeated)
            if self._max_ratio and usual.is_exceeded(worker, norm, self._max_ratio):
                problem = f"the norm of its {name} is {norm:.3g}, and usually it is {usual.value:.3g}"
        return problem

    def are_most(self, workers: Set[int]) -> bool:
        """Whether these are more than half of the workers whose norms are known, also of those that are away."""
        known = [usual.workers for usual in self._usual.values() if usual.workers]
        return all(2 * len(workers & them) > len(them) for them in known)

    def keep_only(self, workers: Set[int]) -> None:
        """Believe these workers, and go by what they have sent lately."""
        for usual in self._usual.values():
            usual.keep_only(workers)
