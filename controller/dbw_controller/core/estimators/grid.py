"""The samples of iteration durations, cell by cell, and the blocks of cells that the solver makes of them.

Cell (h, k) has the samples of the time until the k-th gradient arrived after h had been waited for before. Rows (h)
and columns (k) count from 0, and cells row by row; the diagonal cell of a row is the one whose column has its number.
All is kept in flat arrays, which kernels can work on, see `compiled`.
"""

from typing import NamedTuple

import numpy as np

from dbw_controller.core.kernels import Array, Column, column, compiled, integers, reals


class Grid(NamedTuple):
    """All cells of an n × n problem, its solution, and room to work.

    A block is a chain of segments, at most one in a row: cells without gaps. Row n is a sentinel before the first and
    after the last sampled row.
    """

    size: int
    weight: Column  # of each cell's samples
    mean: Column  # of each cell's samples
    value: Column  # the solution
    segment: Column  # the first cell of each cell's segment
    # Of each segment, at its first cell:
    stop: Column  # the cell after its last one
    below: Column  # the next segment of its block, further down; −1 if there is none
    block: Column  # the first segment of its block; −1 while it belongs to none
    # Of each row:
    previous_row: Column  # the sampled row above it
    next_row: Column  # the sampled row below it
    extent: Column  # the column after its last one that has samples
    changed_from: Column  # the first column with new samples
    changed_to: Column  # the column after the last one with new samples
    # Room to work:
    queued: Column  # whether the block that begins with this segment waits to be compared with its neighbours
    queue: Column  # those blocks
    regions: Column  # regions that are still to be solved
    best: Column  # the dynamic programme: the least cost of each row's staircases up to each column
    choice: Column  # the dynamic programme: the column in the row above that goes with it
    chain: Column  # the segments of a region
    cut: Column  # where a region's staircase cuts each segment
    first: Column  # first column of each row of a union
    last: Column  # the column after its last one


def empty_grid(size: int) -> Grid:
    """Make a problem of n × n cells without samples. Arrays take memory only for rows that get some."""
    cells = size * size
    return Grid(
        size=size,
        **{name: reals(cells) for name in ("weight", "mean", "value")},
        **{name: integers(cells) for name in ("segment", "stop", "below", "block", "queued", "queue", "regions")},
        **{name: integers(size + 1, size) for name in ("previous_row", "next_row")},
        **{name: integers(size, size) for name in ("changed_from", "first")},
        **{name: integers(size) for name in ("extent", "changed_to", "chain", "cut", "last")},
        best=reals(cells + size),
        choice=integers(cells + size),
    )


@compiled
def add_samples(grid: Grid, row: int, column: int, samples: Column, weight: float) -> None:
    """Add one sample of the given weight to each of consecutive cells of a row. The solution is then out of date."""
    if grid.extent[row] == 0:
        _insert_row(grid, row)
    cell = row * grid.size + column
    for sample in samples:
        grid.weight[cell] += weight
        grid.mean[cell] += (sample - grid.mean[cell]) * (weight / grid.weight[cell])
        cell += 1
    end = cell - row * grid.size
    grid.extent[row] = max(grid.extent[row], end)
    grid.changed_from[row] = min(grid.changed_from[row], column)
    grid.changed_to[row] = max(grid.changed_to[row], end)


@compiled
def _insert_row(grid: Grid, row: int) -> None:
    """Put a row between its sampled neighbours, as a region of its own."""
    after = grid.next_row[grid.size]
    while after < row:
        after = grid.next_row[after]
    before = grid.previous_row[after]
    grid.next_row[before] = grid.previous_row[after] = row
    grid.previous_row[row] = before
    grid.next_row[row] = after
    start = row * grid.size
    for cell in range(start, start + grid.size):
        grid.segment[cell] = start
    grid.stop[start] = start + grid.size
    grid.below[start] = -1
    grid.block[start] = start


def sampled_rows(grid: Grid) -> list[int]:
    """The rows that have samples."""
    return [row for row, extent in enumerate(grid.extent) if extent]


def row_samples(grid: Grid, row: int) -> tuple[Array, Array]:
    """Weights and means of a row's cells."""
    cells = slice(row * grid.size, (row + 1) * grid.size)
    return np.array(grid.weight[cells]), np.array(grid.mean[cells])


def set_row_samples(grid: Grid, row: int, weights: Array, means: Array) -> None:
    """Set weights and means of a row's cells, from its first one on. A weight of 0 means that there is no sample."""
    sampled = np.flatnonzero(weights)
    if not sampled.size:
        return
    if grid.extent[row] == 0:
        _insert_row(grid, row)
    cells = slice(row * grid.size, row * grid.size + len(weights))
    grid.weight[cells], grid.mean[cells] = column(weights), column(means)
    grid.extent[row] = grid.changed_to[row] = int(sampled[-1]) + 1
    grid.changed_from[row] = int(sampled[0])


def resized(grid: Grid, size: int) -> Grid:
    """A larger grid with the same samples."""
    larger = empty_grid(size)
    for row in sampled_rows(grid):
        set_row_samples(larger, row, *row_samples(grid, row))
    return larger
