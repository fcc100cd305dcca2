"""A cluster in Push & Wait, simulated as the paper describes it (Section 2): what estimators would see of it."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
RoundTrips = Callable[[np.random.Generator, int], Array]


def exponential(rng: np.random.Generator, count: int) -> Array:
    return rng.exponential(1.0, count)


def shifted_exponential(rng: np.random.Generator, count: int) -> Array:
    return 0.3 + rng.exponential(0.7, count)


def iterations(
    rng: np.random.Generator, workers: int, choose: Callable[[], int], round_trips: RoundTrips
) -> Iterator[tuple[int, int, Array]]:
    """Yield h, k and, for every worker, when its gradient of the iteration's parameters would be in, sorted.

    A worker that is busy when parameters are published finishes first. All workers are idle at the beginning.
    """
    idle_at = np.zeros(workers)  # when each worker is done with what it computes, after the publication
    h = workers
    while True:
        start = np.maximum(idle_at, 0.0)
        arrivals = start + round_trips(rng, workers)
        k = choose()
        times = np.sort(arrivals)
        yield h, k, times
        end = times[k - 1]
        idle_at = np.where(start < end, arrivals, idle_at) - end  # others have not begun to compute this gradient
        h = k
