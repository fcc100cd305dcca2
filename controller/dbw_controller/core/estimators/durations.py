"""How long iterations last: T̂_k for every k (paper, Section 3.2), from the times at which gradients arrived."""

import math
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Struct

from dbw_controller.core.errors import InvalidValueError
from dbw_controller.core.estimators import isotonic, reference
from dbw_controller.core.estimators.diagonal import diagonal_durations
from dbw_controller.core.estimators.grid import (
    Grid,
    add_samples,
    empty_grid,
    resized,
    row_samples,
    sampled_rows,
    set_row_samples,
)
from dbw_controller.core.kernels import COMPILED, Array, Column, column, direct, reals
from dbw_controller.core.reports import MAX_SECONDS, MAX_WORKERS
from dbw_controller.core.state import K, Real, pack, unpack

# With forgetting, new samples weigh 2^e times as much as the first one. Before e gets larger than this, all weights are
# scaled down, and stay above 2^−LARGEST_EXPONENT: a sample may come to count next to nothing, but a cell that was
# sampled once remains so.
LARGEST_EXPONENT = 200
# What a cell of a grid takes; without numba a pointer in each of 13 lists.
CELL_BYTES = 64 if COMPILED else 104


class UnsampledDuration(Enum):
    """Which duration to assume where the samples give only bounds."""

    MIDPOINT = "midpoint"
    LOWER = "lower"


class Solver(Enum):
    """What solves e:quadratic_opt."""

    EXACT = "exact"
    CVXPY = "cvxpy"


class Durations(NamedTuple):
    """Durations of an iteration in seconds, for each k from 1 on."""

    seconds: Array  # T̂_k, never falling with k; NaN where nothing is known
    shortest: Array  # the least that agrees with the samples; 0 where nothing bounds it
    longest: Array  # the most that agrees with the samples; infinity where nothing bounds it


class Kernels(NamedTuple):
    """The kernels that an estimator calls."""

    add_samples: Callable[[Grid, int, int, Column, float], None]
    update: Callable[[Grid], None]
    diagonal_durations: Callable[[Grid, bool, Column, Column, Column], None]


@cache
def kernels() -> Kernels:
    """Compile the kernels, for grids of all sizes: their columns have the same types."""
    grid, durations = empty_grid(1), reals(1)
    return Kernels(
        add_samples=direct(add_samples, grid, 0, 0, durations, 1.0),
        update=direct(isotonic.update, grid),
        diagonal_durations=direct(diagonal_durations, grid, True, durations, durations, durations),
    )


class DurationsState(Struct, frozen=True):
    """All samples of a duration estimator: rows that have any, with the weights and means of all their cells."""

    workers: K
    exponent: Real  # a sample taken at the time of the snapshot weighs 2^exponent
    rows: Annotated[list[K], Meta(max_length=MAX_WORKERS)]
    weights: bytes
    means: bytes


def empty_bytes(workers: int) -> int:
    """What an estimator without samples takes: rows take memory once they have some, but Python's lists do at once."""
    return 0 if COMPILED else workers * workers * CELL_BYTES


class DurationEstimator:
    """Estimates durations from samples t_{h,i}: when the i-th gradient came, after h had been waited for before.

    `half_life` is the number of iterations after which a sample counts half; without it samples count for ever. Of
    each pair (h, i) only the weight and the mean of its samples are kept.
    """

    def __init__(
        self,
        workers: int,
        half_life: float | None = None,
        unsampled: UnsampledDuration = UnsampledDuration.MIDPOINT,
        solver: Solver = Solver.EXACT,
    ) -> None:
        self._grid = empty_grid(workers)
        self._half_life = half_life
        self._unsampled = UnsampledDuration(unsampled)
        self._solver = Solver(solver)
        if self._solver is Solver.CVXPY:
            reference.require_cvxpy()
        self._since, self._exponent_then = 0.0, 0.0  # a sample of that time, in iterations, weighs 2^exponent
        self._estimate: Durations | None = None

    @property
    def workers(self) -> int:
        """The largest h and i that there is room for."""
        return self._grid.size

    def memory_bytes(self, workers: int) -> int:
        """How much all samples would take, if there were room for this many workers."""
        size = max(workers, self.workers)
        return int(np.count_nonzero(self._grid.extent)) * size * CELL_BYTES if COMPILED else empty_bytes(size)

    def grow(self, workers: int) -> None:
        """Make room for more workers. What was learnt stays."""
        if workers > self.workers:
            self._grid = resized(self._grid, workers)
            self._estimate = None

    def add(self, h: int, first: int, seconds: Array, time: float) -> None:
        """Add samples t_{h,first}, t_{h,first+1}, … of an iteration; `time` counts iterations and gives them weight."""
        seconds = np.ascontiguousarray(seconds, float)
        last, workers = first + len(seconds) - 1, self._grid.size
        if not (1 <= h <= workers and first >= 1 and last <= workers):
            raise InvalidValueError("samples", f"t_{h},{first} … t_{h},{last}", f"of 1 to {workers} workers")
        if last >= first:
            kernels().add_samples(self._grid, h - 1, first - 1, column(seconds), self._weight(time))
            self._estimate = None

    def discount(self, samples: float, time: float) -> None:
        """Let what was learnt about each pair (h, i) count for at most so many new samples."""
        most = samples * self._weight(time)
        self._reweigh(lambda weights: np.minimum(weights, most))

    def _exponent(self, time: float) -> float:
        return self._exponent_then + ((time - self._since) / self._half_life if self._half_life else 0.0)

    def _weight(self, time: float) -> float:
        exponent = self._exponent(time)
        if exponent > LARGEST_EXPONENT:
            whole = math.floor(exponent)
            self._reweigh(lambda weights: _halved(weights, whole))
            exponent -= whole
            self._since, self._exponent_then = time, exponent
        return float(2.0 ** max(exponent, -LARGEST_EXPONENT))

    def _reweigh(self, change: Callable[[Array], Array]) -> None:
        for row in sampled_rows(self._grid):
            weights, means = row_samples(self._grid, row)
            changed = change(weights)
            if not np.array_equal(changed, weights):
                set_row_samples(self._grid, row, changed, means)
                self._estimate = None

    def estimate(self) -> Durations:
        """T̂_k for all k, with its bounds."""
        if self._estimate is None:
            grid, use = self._grid, kernels()
            if self._solver is Solver.EXACT:
                use.update(grid)
            else:
                self._solve_by_reference()
            seconds, shortest, longest = reals(grid.size), reals(grid.size), reals(grid.size)
            use.diagonal_durations(grid, self._unsampled is UnsampledDuration.MIDPOINT, seconds, shortest, longest)
            self._estimate = Durations(np.asarray(seconds), np.asarray(shortest), np.asarray(longest))
        return self._estimate

    def averages(self) -> Array:
        """The paper's naive estimate: the mean of the samples t_{k,k} for each k; NaN where there are none."""
        means = np.full(self.workers, np.nan)
        for row in sampled_rows(self._grid):
            weights, samples = row_samples(self._grid, row)
            if weights[row]:
                means[row] = samples[row]
        return means

    def _solve_by_reference(self) -> None:
        square = (self.workers, self.workers)
        weight, mean = np.asarray(self._grid.weight).reshape(square), np.asarray(self._grid.mean).reshape(square)
        if sampled_rows(self._grid):
            self._grid.value[:] = column(reference.solve(weight, mean).ravel())

    def snapshot(self, time: float) -> DurationsState:
        """All samples, and what one of the given time would weigh."""
        rows = sampled_rows(self._grid)
        samples = [row_samples(self._grid, row) for row in rows]
        weights, means = (b"".join(pack(row[i]) for row in samples) for i in range(2))
        return DurationsState(self.workers, self._exponent(time), [row + 1 for row in rows], weights, means)

    def restore(self, state: DurationsState, time: float) -> None:
        """Replace all samples by those of a state. They may come from an estimator with another half-life."""
        rows, workers = state.rows, state.workers
        if rows != sorted(set(rows)) or any(row > workers for row in rows):
            raise ValueError(f"rows of durations are not in order, or not of {workers} workers")
        if not len(state.weights) == len(state.means) == len(rows) * workers * 8:
            raise ValueError(f"samples of durations are not of {len(rows)} rows of {workers}")
        grid = empty_grid(max(workers, self.workers))
        for i, row in enumerate(rows):  # one after the other: all of them may be large
            cells = slice(i * workers * 8, (i + 1) * workers * 8)
            weights = unpack(memoryview(state.weights)[cells], workers, 0, 2.0 ** (LARGEST_EXPONENT + 60))
            means = unpack(memoryview(state.means)[cells], workers, 0, MAX_SECONDS)
            set_row_samples(grid, row - 1, weights, means)
        self._grid, self._estimate = grid, None
        self._since, self._exponent_then = time, state.exponent


def _halved(weights: Array, times: int) -> Array:
    """Weights divided by a power of 2, which is exact; those above 0 stay so."""
    least = 2.0**-LARGEST_EXPONENT
    return np.where(weights > 0, np.maximum(np.ldexp(weights, -min(times, 3 * LARGEST_EXPONENT)), least), 0.0)
