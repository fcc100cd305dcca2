"""What reports show of recorded trainings, in numbers; nothing is drawn here."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median

import numpy as np

from dbw_controller.core.kernels import Array
from dbw_experiments.demo.runs import Iteration, Run

CLOSE_UP_ITERATIONS = 20


def decisions(run: Run) -> Iterator[tuple[Iteration, int | None]]:
    """The first iteration and those with another k than the one before, each with the k before."""
    yield run.iterations[0], None
    for before, iteration in pairwise(run.iterations):
        if iteration.k != before.k:
            yield iteration, before.k


def close_up_seconds(runs: Sequence[Run]) -> float:
    """How much of each training shows some iterations of the quickest, so that single gradients can be told apart."""
    quickest = min(median(i.duration for i in run.iterations) for run in runs)
    return min(CLOSE_UP_ITERATIONS * quickest, max(run.seconds for run in runs)) or 1.0


def begins_in_the_middle(run: Run, seconds: float) -> Array:
    """When the iterations began that are in some seconds from the middle of a training, which start with the first."""
    begins = np.array([i.begin for i in run.iterations])
    latest = max(0.0, run.seconds - seconds)
    first = max(int(np.searchsorted(begins, min(run.seconds / 2, latest), side="right")) - 1, 0)
    inside: Array = begins[(begins >= begins[first]) & (begins < begins[first] + seconds)]
    return inside


def late_shares(run: Run, worker: int, edges: Array) -> Array:
    """Which share of a worker's gradients was late in each span of time; 0 where there are none."""
    times = [[a.time for a in run.arrivals if a.worker == worker and a.is_late >= late] for late in (False, True)]
    every, late = (np.histogram(seen, edges)[0] for seen in times)
    shares: Array = late / np.maximum(every, 1)
    return shares


def moving_average(values: Array, width: int) -> Array:
    """The mean over `width` values at either side, over fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    middle = np.arange(len(values))
    first, last = np.maximum(middle - width, 0), np.minimum(middle + width + 1, len(values))
    average: Array = (sums[last] - sums[first]) / (last - first)
    return average


def measured(points: Iterable[tuple[float, float | None]]) -> tuple[Array, Array]:
    """The points that have a value."""
    there = np.array([(x, y) for x, y in points if y is not None and np.isfinite(y)]).reshape(-1, 2)
    return there[:, 0], there[:, 1]
