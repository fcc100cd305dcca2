"""How long iterations would last with any k, where workers finish what they have begun (Push & Wait, Pull).

Each k has a shadow: a cluster that waits for k gradients in every iteration, whatever the real one does. Its workers
take as long as the real ones took of late, one round trip after the other, and what a worker has not finished at the
end of an iteration is carried into the next. So no k need be tried to know how long it takes, workers may differ as
they like, and there is no assumption about distributions.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Self

import numpy as np

from dbw_controller.core.estimators.round_trips import Integers, RoundTrips
from dbw_controller.core.kernels import Array, compiled, direct

SHADOWS = 32  # at the most: with more workers, not every k has one
FADING = 0.95  # what an iteration of a shadow counts after the next one
REPLAYED, WARM_UP = 4, 20  # iterations for one of the real cluster, and where nothing is known of durations
STEPS = 20_000  # of all shadows' workers, at the most, so that large clusters have fewer iterations


class Shadows(NamedTuple):
    """The shadows' state: columns over shadows, over workers, or over both, one shadow after the other."""

    k: Integers
    cursor: Integers  # which round trip comes next
    remaining: Array  # seconds until what was begun in earlier iterations is finished; 0: the worker is idle
    mean: Array  # of a shadow's durations, and
    square: Array  # of their squares, both times
    weight: Array
    arrivals: Array  # scratch
    ordered: Array

    @classmethod
    def new(cls, workers: int) -> Self:
        """Shadows of idle workers."""
        k = np.array(shadowed(workers), np.int64)
        return cls(
            k=k,
            cursor=np.zeros(len(k) * workers, np.int64),
            remaining=np.zeros(len(k) * workers),
            mean=np.zeros(len(k)),
            square=np.zeros(len(k)),
            weight=np.zeros(len(k)),
            arrivals=np.zeros(workers),
            ordered=np.zeros(workers),
        )

    def forget(self) -> None:
        """Forget how long iterations have lasted."""
        self.mean[:] = self.square[:] = self.weight[:] = 0.0


def shadowed(workers: int) -> list[int]:
    """The k that have shadows: all, or as many as there may be, closer to each other where k is small."""
    if workers <= SHADOWS:
        return list(range(1, workers + 1))
    return sorted({round(k) for k in np.geomspace(1, workers, SHADOWS).tolist()})


@cache
def replay_kernel() -> Callable[[Shadows, RoundTrips], None]:
    """Compile the kernel, for any number of workers."""
    return direct(replay, Shadows.new(1), RoundTrips.unknown(1))


@compiled
def replay(shadows: Shadows, trips: RoundTrips) -> None:
    """Let every shadow go on for a while. Each worker must have made a round trip."""
    workers, cursor, remaining = len(trips.filled), shadows.cursor, shadows.remaining
    remembered = len(trips.seconds) // workers  # the constant is in another file, whose changes a cache does not notice
    arrivals, ordered = shadows.arrivals, shadows.ordered
    warm = shadows.weight[0] > 0.0
    iterations = min(REPLAYED, STEPS // len(remaining)) if warm else min(WARM_UP, 10 * STEPS // len(remaining))
    for shadow in range(len(shadows.k)):
        first = shadow * workers
        for _ in range(max(iterations, 1)):
            for worker in range(workers):
                if cursor[first + worker] >= trips.filled[worker]:
                    cursor[first + worker] = 0
                trip = trips.seconds[worker * remembered + cursor[first + worker]]
                arrivals[worker] = ordered[worker] = remaining[first + worker] + trip
            duration = smallest(ordered, shadows.k[shadow])
            for worker in range(workers):
                before = remaining[first + worker]
                if before >= duration and before > 0.0:  # it is still busy with an earlier iteration
                    remaining[first + worker] = before - duration
                else:
                    remaining[first + worker] = max(arrivals[worker] - duration, 0.0)
                    cursor[first + worker] += 1
            shadows.mean[shadow] = FADING * shadows.mean[shadow] + duration
            shadows.square[shadow] = FADING * shadows.square[shadow] + duration * duration
            shadows.weight[shadow] = FADING * shadows.weight[shadow] + 1.0


@compiled
def smallest(values: Array, k: int) -> float:
    """The k-th smallest value; the others change places."""
    low, high = 0, len(values) - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return float(values[k - 1])
