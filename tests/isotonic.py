"""The duration problem from its definition, for tests to compare with: nothing of it is shared with the solver."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import numpy.typing as npt
import quadprog

Array = npt.NDArray[np.float64]


def smaller(cell: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether the constraints of e:quadratic_opt, taken together, say that x of one cell is at most that of the other.

    They make x grow with k, fall with h, and grow along the diagonal: from (h, k) one gets to a larger k at any time,
    to a smaller h at any time, and to a larger h only by way of the diagonal.
    """
    (h, k), (h2, k2) = cell, other
    return k <= k2 and (h2 <= h or (k <= h and h2 <= k2))


def smaller_by_steps(size: int) -> npt.NDArray[np.bool_]:
    """The same from the constraints themselves, one step after the other; cells are numbered row by row."""
    reach = np.eye(size * size, dtype=bool)
    for h in range(size):
        for k in range(size):
            steps = [(h, k + 1), (h - 1, k)] + ([(h + 1, k + 1)] if h == k else [])
            for h2, k2 in steps:
                if 0 <= h2 < size and k2 < size:
                    reach[h * size + k, h2 * size + k2] = True
    for middle in range(size * size):
        reach |= reach[:, middle : middle + 1] & reach[middle]
    return reach


def solve_by_quadprog(weights: Array, means: Array) -> Array:
    """The solution on the sampled cells by a general solver, all order relations as constraints; NaN elsewhere.

    It may cycle for ever where values are almost equal.
    """
    cells: Sequence[tuple[int, int]] = [(int(h), int(k)) for h, k in np.argwhere(weights > 0)]
    pairs = [(i, j) for i, a in enumerate(cells) for j, b in enumerate(cells) if i != j and smaller(a, b)]
    w = np.array([weights[cell] for cell in cells])
    m = np.array([means[cell] for cell in cells])
    solution = m
    if pairs:
        constraints = np.zeros((len(cells), len(pairs)))
        for column, (i, j) in enumerate(pairs):
            constraints[i, column], constraints[j, column] = -1, 1
        solution = quadprog.solve_qp(np.diag(w), w * m, constraints, np.zeros(len(pairs)))[0]
    values = np.full(weights.shape, np.nan)
    for cell, value in zip(cells, solution, strict=True):
        values[cell] = value
    return values


def solve_full(weights: Array, means: Array) -> Array:
    """The solution where all cells are sampled, with the constraints as the paper writes them."""
    size = len(weights)
    pairs = [((h, k), (h, k + 1)) for h in range(size) for k in range(size - 1)]
    pairs += [((h + 1, k), (h, k)) for h in range(size - 1) for k in range(size)]
    pairs += [((k, k), (k + 1, k + 1)) for k in range(size - 1)]
    constraints = np.zeros((size * size, len(pairs)))
    for column, ((h, k), (h2, k2)) in enumerate(pairs):
        constraints[h * size + k, column], constraints[h2 * size + k2, column] = -1, 1
    w, m = weights.ravel(), means.ravel()
    solution = quadprog.solve_qp(np.diag(w), w * m, constraints, np.zeros(len(pairs)))[0]
    return np.asarray(solution).reshape(size, size)


@cache
def lower_sets(size: int) -> list[frozenset[tuple[int, int]]]:
    """All sets of cells that hold, with each cell, all smaller ones."""
    cells = [(h, k) for h in range(size) for k in range(size)]
    known = {frozenset[tuple[int, int]]()}
    frontier = list(known)
    while frontier:
        lower_set = frontier.pop()
        for cell in cells:
            if cell not in lower_set and all(c in lower_set for c in cells if c != cell and smaller(c, cell)):
                grown = lower_set | {cell}
                if grown not in known:
                    known.add(grown)
                    frontier.append(grown)
    return list(known)


def solve_in_fractions(weights: Array, means: Array) -> Array:
    """The solution on the sampled cells of a small problem, without rounding and by trying all lower sets."""
    w = {(int(h), int(k)): Fraction(float(weights[h, k])) for h, k in np.argwhere(weights > 0)}
    m = {cell: Fraction(float(means[cell])) for cell in w}
    values = np.full(weights.shape, np.nan)
    regions = [frozenset(w)] if w else []
    while regions:
        region = regions.pop()
        mean = sum(w[c] * m[c] for c in region) / sum(w[c] for c in region)
        candidates = {lower_set & region for lower_set in lower_sets(len(weights))}
        lower = min(candidates, key=lambda cells: sum((w[c] * (m[c] - mean) for c in cells), Fraction(0)))
        if sum((w[c] * (m[c] - mean) for c in lower), Fraction(0)) < 0:
            regions += [lower, region - lower]
        else:
            for cell in region:
                values[cell] = float(mean)
    return values


def diagonal_bounds(values: Array) -> tuple[Array, Array]:
    """The interval of each diagonal value: from the sampled cells that are smaller, or −1, to those that are larger."""
    size = len(values)
    sampled = [(int(h), int(k)) for h, k in np.argwhere(~np.isnan(values))]
    low, high = np.full(size, -1.0), np.full(size, np.inf)
    for k in range(size):
        low[k] = max((values[cell] for cell in sampled if smaller(cell, (k, k))), default=-1.0)
        high[k] = min((values[cell] for cell in sampled if smaller((k, k), cell)), default=np.inf)
    return low, high
