"""The duration estimate by a general solver: slow, but as plain as the paper states it."""

import importlib
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from dbw_controller.core.errors import NotSupportedError
from dbw_controller.core.kernels import Array

Cell = tuple[int, int]
# What a cell weighs at least, relative to the heaviest one. Solvers lose sight of less; next to nothing it is anyway.
LIGHTEST = 1e-6


def order(cells: list[Cell]) -> list[tuple[int, int]]:
    """Pairs of cells (by their index in the list), the first of which must not have the larger value.

    The constraints of e:quadratic_opt that bind the given cells, with all that follow from them through other cells.
    """
    index = {cell: i for i, cell in enumerate(cells)}
    rows: dict[int, list[int]] = {}
    for h, k in sorted(cells):
        rows.setdefault(h, []).append(k)
    pairs = []
    for h, row in rows.items():
        pairs += [(index[h, j], index[h, k]) for j, k in pairwise(row)]
        for k in row:
            nearest = None  # in rows above: x does not grow with h
            for above in sorted((r for r in rows if r < h), reverse=True):
                right = min((j for j in rows[above] if j >= k), default=None)
                if right is not None and (nearest is None or right < nearest):
                    nearest = right
                    pairs.append((index[h, k], index[above, right]))
                if nearest == k:
                    break
        left = max((k for k in row if k <= h), default=None)
        if left is not None:  # along the diagonal
            for beneath in sorted(r for r in rows if r > h):
                right = min((k for k in rows[beneath] if k >= beneath), default=None)
                if right is not None:
                    pairs.append((index[h, left], index[beneath, right]))
                if right == beneath:
                    break
    return pairs


def require_cvxpy() -> Any:  # noqa: ANN401 (it has hardly any type hints)
    """Import cvxpy, which takes a second."""
    try:
        return importlib.import_module("cvxpy")
    except ImportError as missing:
        raise NotSupportedError("the solver cvxpy is not installed: pip install 'dbw[experiments]'") from missing


class Problem:
    """e:quadratic_opt over given cells, built once and solved for any weights and means."""

    def __init__(self, cells: list[Cell], solver: str = "CLARABEL", **options: Any) -> None:  # noqa: ANN401
        cp = require_cvxpy()
        self._solver, self._options = solver, options
        self._values = cp.Variable(len(cells))
        self._scale = cp.Parameter(len(cells), nonneg=True)
        self._target = cp.Parameter(len(cells))
        pairs = order(cells)
        smaller, larger = [i for i, _ in pairs], [j for _, j in pairs]
        error = cp.multiply(self._scale, self._values) - self._target
        constraints = [self._values[smaller] <= self._values[larger]] if pairs else []
        self._problem = cp.Problem(cp.Minimize(cp.sum_squares(error)), constraints)

    def solve(self, weights: Array, means: Array) -> Array:
        """The values of the cells."""
        unit = means.max() or 1.0  # solvers' tolerances are made for numbers around 1
        self._scale.value = np.sqrt(np.maximum(weights / weights.max(), LIGHTEST))
        self._target.value = self._scale.value * means / unit
        self._problem.solve(solver=self._solver, **self._options)
        if self._problem.status != "optimal":
            raise RuntimeError(f"{self._solver} did not solve the problem: {self._problem.status}")
        return np.asarray(self._values.value) * unit


@lru_cache(maxsize=8)
def problem(cells: tuple[Cell, ...]) -> Problem:
    """The problem of these cells, kept for as long as no other cells are sampled."""
    return Problem(list(cells), tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)


def solve(weight: Array, mean: Array) -> Array:
    """The values of all cells of an n × n problem; NaN where there is no sample."""
    cells = [(int(h), int(k)) for h, k in np.argwhere(weight > 0)]
    value = np.full(weight.shape, np.nan)
    sampled = tuple(np.array(cells).T)
    value[sampled] = problem(tuple(cells)).solve(weight[sampled], mean[sampled])
    return value
