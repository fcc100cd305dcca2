"""A cluster in Push & Wait, simulated as the paper describes it (Section 2)."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
RoundTrips = Callable[[np.random.Generator, int], Array]


class Iteration(NamedTuple):
    """One iteration, after h gradients had been waited for before it."""

    h: int
    k: int  # how many gradients arrived in time
    times: Array  # when every worker's gradient would be in, sorted: 𝒯_{h,1}, 𝒯_{h,2}, …
    arrivals: Array  # those that came: a worker that was busy until the iteration's end never computed its gradient
    workers: npt.NDArray[np.int64]  # whose they were
    seconds: float  # how long it lasted


def exponential(rng: np.random.Generator, count: int) -> Array:
    return rng.exponential(1.0, count)


def shifted_exponential(rng: np.random.Generator, count: int) -> Array:
    return 0.3 + rng.exponential(0.7, count)


def no_deadline() -> float | None:
    return None


def iterations(
    rng: np.random.Generator,
    workers: int,
    choose: Callable[[], int],
    round_trips: RoundTrips,
    deadline: Callable[[], float | None] = no_deadline,
) -> Iterator[Iteration]:
    """Run for ever. A worker that is busy when parameters are published finishes first; at first all are idle."""
    idle_at = np.zeros(workers)  # when each worker is done with what it computes, after the publication
    h = workers
    while True:
        start = np.maximum(idle_at, 0.0)
        done = start + round_trips(rng, workers)
        k = choose()
        times = np.sort(done)
        end = times[k - 1]
        if (seconds := deadline()) is not None and seconds < end:
            end = max(times[0], seconds)
            k = int((times <= end).sum())
        computed = start < end
        workers_in_order = np.flatnonzero(computed)[np.argsort(done[computed])]
        yield Iteration(h, k, times, done[workers_in_order], workers_in_order, float(end))
        idle_at = np.where(computed, done, idle_at) - end
        h = k
