"""The solver is exact: it agrees with general solvers, however the samples came in."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbw_controller.core.estimators import isotonic, reference
from dbw_controller.core.estimators.diagonal import diagonal_bounds
from dbw_controller.core.estimators.grid import (
    Grid,
    add_samples,
    empty_grid,
    resized,
    row_samples,
    sampled_rows,
    set_row_samples,
)
from dbw_controller.core.kernels import COMPILED, Array, column, reals
from tests import isotonic as oracle

EXACT = 1e-9


class Addition(NamedTuple):
    """Samples for consecutive cells of a row."""

    row: int
    column: int
    samples: list[float]
    weight: float


@st.composite
def histories(
    draw: st.DrawFn, values: st.SearchStrategy[float], weights: st.SearchStrategy[float]
) -> tuple[int, list[Addition]]:
    """A small size, and samples in any order."""
    size = draw(st.integers(1, 4))

    @st.composite
    def additions(draw: st.DrawFn) -> Addition:
        row, column = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
        samples = draw(st.lists(values, min_size=1, max_size=size - column))
        return Addition(row, column, sorted(samples) if draw(st.booleans()) else samples, draw(weights))

    return size, draw(st.lists(additions(), min_size=1, max_size=12))


def random_history(seed: int) -> tuple[int, list[Addition]]:
    """A larger size, and samples: sorted and unsorted times, whole rows and gaps, ties, uneven weights."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 13))
    ties = rng.random() < 0.3
    additions = []
    for _ in range(rng.integers(1, 16)):
        column = 0 if rng.random() < 0.5 else int(rng.integers(size))
        count = int(rng.integers(1, size - column + 1))
        samples = rng.integers(1, 4, count).astype(float) if ties else rng.exponential(1.0, count) + 0.1
        samples = np.sort(samples) if rng.random() < 0.6 else samples
        weight = float(rng.choice([1.0, 1.0, 100 * rng.random(), 1e4, 1e-3]))
        additions.append(Addition(int(rng.integers(size)), column, samples.tolist(), weight))
    return size, additions


def add(grid: Grid, addition: Addition) -> None:
    add_samples(grid, addition.row, addition.column, column(np.array(addition.samples)), addition.weight)


def square(grid: Grid, values: object) -> Array:
    return np.array(values).reshape(grid.size, grid.size)


def sampled_values(grid: Grid) -> Array:
    return np.where(square(grid, grid.weight) > 0, square(grid, grid.value), np.nan)


def assert_exact(grid: Grid, solve: Callable[[Array, Array], Array] = oracle.solve_by_quadprog) -> None:
    expected = solve(square(grid, grid.weight), square(grid, grid.mean))
    np.testing.assert_allclose(sampled_values(grid), expected, rtol=EXACT)
    low, high = reals(grid.size), reals(grid.size)
    diagonal_bounds(grid, low, high)
    expected_low, expected_high = oracle.diagonal_bounds(expected)
    np.testing.assert_allclose(low, expected_low, rtol=EXACT)
    np.testing.assert_allclose(high, expected_high, rtol=EXACT)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_order_used_by_the_oracle_is_the_one_that_the_papers_constraints_imply(size: int) -> None:
    cells = [(h, k) for h in range(size) for k in range(size)]
    by_steps = oracle.smaller_by_steps(size)
    by_formula = np.array([[oracle.smaller(a, b) for b in cells] for a in cells])
    np.testing.assert_array_equal(by_formula, by_steps)


@pytest.mark.parametrize("seed", range(0, 600, 100))
def test_repairing_after_every_change_agrees_with_quadprog(seed: int) -> None:
    for history in range(seed, seed + 100):
        size, additions = random_history(history)
        grid = empty_grid(size)
        for addition in additions:
            add(grid, addition)
            isotonic.repair(grid)
            assert_exact(grid)


def test_repairing_after_several_changes_agrees_with_quadprog() -> None:
    for seed in range(1000, 1200):
        size, additions = random_history(seed)
        grid = empty_grid(size)
        for i, addition in enumerate(additions):
            add(grid, addition)
            if i % 3 == seed % 3:
                isotonic.repair(grid)
        isotonic.repair(grid)
        assert_exact(grid)


def test_the_papers_problem_with_all_cells_sampled_agrees_with_quadprog() -> None:
    size = 24
    rng = np.random.default_rng(1)
    grid = empty_grid(size)
    for step in range(4 * size):
        add(grid, Addition(step % size, 0, np.sort(rng.exponential(1.0, size)).tolist(), 1.0))
        isotonic.repair(grid)
    expected = oracle.solve_full(square(grid, grid.weight), square(grid, grid.mean))
    np.testing.assert_allclose(sampled_values(grid), expected, rtol=EXACT)


def test_numbers_that_overflow_end_as_well() -> None:
    huge = 1.79e308
    grid = empty_grid(3)
    rows = [(2, [1.0, huge, 1.0]), (0, [1.0, 1.0, huge]), (0, [huge, 1.0, 1.0]), (0, [1.0, 1.0, 1.0])]
    with np.errstate(all="ignore"):
        for row, samples in rows:
            add(grid, Addition(row, 0, samples, 1.0))
            isotonic.repair(grid)
    assert not any(grid.queued)


@given(histories(st.floats(0.001, 1000), st.sampled_from([1.0, 0.25, 3.7, 2.0**-200, 2.0**200])))
@settings(max_examples=400)
def test_any_times_of_any_weights_are_fitted_exactly(history: tuple[int, list[Addition]]) -> None:
    size, additions = history
    grid = empty_grid(size)
    for addition in additions:
        add(grid, addition)
        isotonic.repair(grid)
    assert_exact(grid, oracle.solve_in_fractions)
    isotonic.solve(grid)
    assert_exact(grid, oracle.solve_in_fractions)


@given(histories(st.integers(1, 3).map(float), st.integers(1, 3).map(float)))
@settings(max_examples=300)
def test_ties_do_no_harm(history: tuple[int, list[Addition]]) -> None:
    size, additions = history
    grid = empty_grid(size)
    for addition in additions:
        add(grid, addition)
        isotonic.update(grid)
    assert_exact(grid, oracle.solve_in_fractions)


def test_a_row_between_the_rows_of_a_block_of_one_column_does_no_harm() -> None:
    """Cells (0, 2) and (2, 2) are a block when row 1 comes between them, with the same value."""
    grid = empty_grid(3)
    for row, first, samples in [(0, 0, [1.0] * 2), (0, 2, [3.0]), (2, 0, [1.0] * 2), (1, 1, [1.0, 3.0]), (2, 2, [1.0])]:
        add(grid, Addition(row, first, samples, 1.0))
        (isotonic.repair if row == 1 or (row, first) == (2, 2) else isotonic.solve)(grid)
    assert_exact(grid, oracle.solve_in_fractions)


@given(st.integers(0, 2**32))
@settings(max_examples=300)
def test_solving_anew_gives_the_same_as_repairing(seed: int) -> None:
    size, additions = random_history(seed)
    repaired, solved = empty_grid(size), empty_grid(size)
    for addition in additions:
        add(repaired, addition)
        isotonic.repair(repaired)
        add(solved, addition)
    isotonic.solve(solved)
    np.testing.assert_allclose(sampled_values(repaired), sampled_values(solved), rtol=1e-12)
    isotonic.solve(repaired)
    isotonic.repair(repaired)  # nothing has changed since
    np.testing.assert_allclose(sampled_values(repaired), sampled_values(solved), rtol=1e-12)


def test_repairing_and_solving_agree_on_a_large_cluster() -> None:
    rng = np.random.default_rng(7)
    size = 150
    grid = empty_grid(size)
    for _ in range(400):
        h = int(rng.integers(size))
        times = rng.exponential(1.0, size) + np.where(np.arange(size) <= h, 0.3, 0.3 + rng.exponential(1.0, size))
        add(grid, Addition(h, 0, np.sort(times).tolist(), 1.0))
        isotonic.repair(grid)
    repaired = sampled_values(grid)
    isotonic.solve(grid)
    np.testing.assert_allclose(repaired, sampled_values(grid), rtol=1e-12)


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_cvxpy_finds_the_same(seed: int) -> None:
    size, additions = random_history(seed)
    additions = [addition._replace(weight=1.0) for addition in additions]  # what its solvers take well
    grid = empty_grid(size)
    for addition in additions:
        add(grid, addition)
    isotonic.update(grid)
    found = reference.solve(square(grid, grid.weight), square(grid, grid.mean))
    np.testing.assert_allclose(found, sampled_values(grid), rtol=2e-4)


@given(st.integers(0, 2**32))
@settings(max_examples=200)
def test_the_pairs_given_to_cvxpy_are_the_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 7))
    cells = [(h, k) for h in range(size) for k in range(size) if rng.random() < rng.choice([0.2, 0.6, 1.0])]
    reach = np.eye(len(cells), dtype=bool)
    for i, j in reference.order(cells):
        reach[i, j] = True
    for middle in range(len(cells)):
        reach |= reach[:, middle : middle + 1] & reach[middle]
    np.testing.assert_array_equal(
        reach, np.array([[oracle.smaller(a, b) for b in cells] for a in cells], bool).reshape(reach.shape)
    )


@given(st.integers(0, 2**32), st.integers(0, 5))
@settings(max_examples=100)
def test_a_larger_grid_holds_the_same_samples(seed: int, more: int) -> None:
    size, additions = random_history(seed)
    grid = empty_grid(size)
    for addition in additions:
        add(grid, addition)
    isotonic.update(grid)
    larger = resized(grid, size + more)
    isotonic.update(larger)
    assert sampled_rows(larger) == sampled_rows(grid)
    np.testing.assert_allclose(sampled_values(larger)[:size, :size], sampled_values(grid), rtol=1e-12)
    assert np.isnan(sampled_values(larger)[size:]).all()


def test_a_row_without_weight_is_no_row() -> None:
    grid = empty_grid(3)
    set_row_samples(grid, 1, np.zeros(3), np.ones(3))
    assert sampled_rows(grid) == []


def test_samples_are_averaged_by_weight() -> None:
    grid = empty_grid(2)
    add(grid, Addition(1, 0, [1.0, 4.0], 1.0))
    add(grid, Addition(1, 1, [10.0], 2.0))
    weights, means = row_samples(grid, 1)
    assert weights.tolist() == [1.0, 3.0]
    assert means.tolist() == [1.0, 8.0]


@pytest.mark.skipif(not COMPILED, reason="this is the run without numba")
def test_all_of_this_holds_without_numba() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "not cvxpy"],
        cwd=Path(__file__).parents[4],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    assert "1 skipped" in run.stdout
