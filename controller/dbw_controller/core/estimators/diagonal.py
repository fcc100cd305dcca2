"""What the solution says about the diagonal, whose values are the durations of iterations."""

import math

from dbw_controller.core.estimators.grid import Grid
from dbw_controller.core.kernels import Column, compiled


@compiled
def diagonal_bounds(grid: Grid, shortest: Column, longest: Column) -> None:
    """Find the interval of each diagonal value in all optimal solutions; it is one value where samples determine it.

    The value at (k, k) is at least that of every sampled (h, j) with j ≤ k, j ≤ h, and at most that of every sampled
    one with j ≥ k, j ≥ h. Where there is none, the bound is −1 or infinity.
    """
    size, value = grid.size, grid.value
    bound = -1.0  # by rows up to k
    above = size  # the last of them
    for k in range(size):
        column = -1
        if grid.extent[k] > 0:
            above = k
            column = _last_sampled(grid, k, k)
            if column >= 0:
                bound = max(bound, value[k * size + column])
        shortest[k] = bound
        row = size if column == k else grid.next_row[above]
        while row < size:
            column = _last_sampled(grid, row, k)
            if column >= 0:
                shortest[k] = max(shortest[k], value[row * size + column])
            if column == k:  # it bounds all that rows further down have
                break
            row = grid.next_row[row]

    bound = math.inf  # by rows from k on
    beneath = size  # the first of them
    for k in range(size - 1, -1, -1):
        column = size
        if grid.extent[k] > 0:
            beneath = k
            column = _first_sampled(grid, k, k)
            if column < size:
                bound = min(bound, value[k * size + column])
        longest[k] = max(bound, shortest[k])  # they may cross by rounding
        row = size if column == k else grid.previous_row[beneath]
        while row < size:
            column = _first_sampled(grid, row, k)
            if column < size:
                longest[k] = max(min(longest[k], value[row * size + column]), shortest[k])
            if column == k:
                break
            row = grid.previous_row[row]


@compiled
def diagonal_durations(grid: Grid, midpoint: bool, seconds: Column, shortest: Column, longest: Column) -> None:
    """Find one duration for each k, and its bounds: 0 and infinity where there is none.

    Between two bounds, it is the midpoint or the lower one, as asked for; a missing bound leaves the other one. It
    never falls with k, and is NaN where nothing is known.
    """
    diagonal_bounds(grid, shortest, longest)
    least = -math.inf  # by those up to k
    for k in range(grid.size):
        low, high = shortest[k], longest[k]
        if low < 0.0:
            duration = high if high < math.inf else math.nan
            shortest[k] = 0.0
        else:
            duration = (low + high) / 2 if midpoint and high < math.inf else low
        if duration > least:
            least = duration
        seconds[k] = math.nan if math.isnan(duration) else least


@compiled
def _last_sampled(grid: Grid, row: int, column: int) -> int:
    """The last column up to the given one that has samples; −1 if there is none."""
    start, weight = row * grid.size, grid.weight
    if column >= grid.extent[row]:
        column = grid.extent[row] - 1
    while column >= 0 and weight[start + column] == 0.0:
        column -= 1
    return column


@compiled
def _first_sampled(grid: Grid, row: int, column: int) -> int:
    """The first column from the given one that has samples; the number of columns if there is none."""
    start, weight = row * grid.size, grid.weight
    while column < grid.extent[row]:
        if weight[start + column] > 0.0:
            return column
        column += 1
    return grid.size
