"""What the paper leaves open about durations: docs/decisions says why."""

import math
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dbw_controller.core.errors import InvalidValueError, NotSupportedError
from dbw_controller.core.estimators import isotonic
from dbw_controller.core.estimators.diagonal import diagonal_durations
from dbw_controller.core.estimators.durations import CELL_BYTES, DurationEstimator, Solver, UnsampledDuration, kernels
from dbw_controller.core.estimators.grid import add_samples
from dbw_controller.core.kernels import COMPILED


def add(estimator: DurationEstimator, h: int, times: list[float], first: int = 1, time: float = 0.0) -> None:
    estimator.add(h, first, np.array(times), time)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not COMPILED, reason="columns are lists")
def test_rows_take_memory_for_the_cells_that_they_have_and_not_for_those_between_them() -> None:
    kernels()
    workers, rows = 4096, 64
    before = resident_bytes()
    estimator = DurationEstimator(workers)
    for h in range(1, workers, workers // rows):
        add(estimator, h, [1.0], first=workers)
    estimator.estimate()
    assert resident_bytes() - before < 2 * rows * workers * CELL_BYTES


def test_without_samples_nothing_is_known() -> None:
    estimate = DurationEstimator(3).estimate()
    assert np.isnan(estimate.seconds).all()
    assert estimate.shortest.tolist() == [0.0] * 3
    assert estimate.longest.tolist() == [math.inf] * 3


def test_where_samples_give_only_bounds_their_middle_is_assumed() -> None:
    estimator = DurationEstimator(3)
    add(estimator, 3, [1.0, 2.0, 4.0])
    estimate = estimator.estimate()
    assert estimate.shortest.tolist() == [1.0, 2.0, 4.0]
    assert estimate.longest.tolist() == [4.0, 4.0, 4.0]
    assert estimate.seconds.tolist() == [2.5, 3.0, 4.0]


def test_the_lower_bound_is_assumed_where_that_is_asked_for() -> None:
    estimator = DurationEstimator(3, unsampled=UnsampledDuration.LOWER)
    add(estimator, 3, [1.0, 2.0, 4.0])
    assert estimator.estimate().seconds.tolist() == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("unsampled", UnsampledDuration)
def test_a_missing_bound_leaves_the_other_one(unsampled: UnsampledDuration) -> None:
    estimator = DurationEstimator(3, unsampled=unsampled)
    add(estimator, 2, [2.0], first=2)  # x_22 only: at least that for k = 3, at most that for k = 1
    estimate = estimator.estimate()
    assert estimate.seconds.tolist() == [2.0, 2.0, 2.0]
    assert estimate.shortest.tolist() == [0.0, 2.0, 2.0]
    assert estimate.longest.tolist() == [2.0, 2.0, math.inf]


def test_what_has_neither_bound_is_not_known() -> None:
    estimator = DurationEstimator(3)
    add(estimator, 3, [5.0], first=2)  # x_32: at least that for k = 2 and 3, but nothing about k = 1
    seconds = estimator.estimate().seconds
    assert math.isnan(seconds[0])
    assert seconds[1:].tolist() == [5.0, 5.0]


@given(st.integers(0, 2**32), st.sampled_from(UnsampledDuration))
def test_durations_never_fall_with_k_and_lie_within_their_bounds(seed: int, unsampled: UnsampledDuration) -> None:
    rng = np.random.default_rng(seed)
    workers = int(rng.integers(1, 9))
    estimator = DurationEstimator(workers, unsampled=unsampled)
    for _ in range(rng.integers(1, 8)):
        first = int(rng.integers(1, workers + 1))
        estimator.add(int(rng.integers(1, workers + 1)), first, rng.random(workers - first + 1), 0.0)
    seconds, shortest, longest = estimator.estimate()
    known = ~np.isnan(seconds)
    assert (np.diff(seconds[known]) >= 0).all()
    assert (shortest <= longest).all()
    assert (seconds[known] >= shortest[known]).all()
    assert (seconds[known] <= longest[known] * (1 + 1e-12)).all()


def test_a_measured_time_of_zero_is_a_bound() -> None:
    estimator = DurationEstimator(2)
    add(estimator, 2, [0.0, 4.0])
    assert estimator.estimate().seconds.tolist() == [2.0, 4.0]


def test_what_was_learnt_can_be_made_to_count_for_less() -> None:
    estimator = DurationEstimator(1, half_life=10)
    for time in range(30):
        add(estimator, 1, [1.0], time=time)
    estimator.discount(2, time=30)
    add(estimator, 1, [4.0], time=30)
    assert estimator.estimate().seconds.tolist() == pytest.approx([(2 * 1.0 + 4.0) / 3])


@pytest.mark.parametrize(
    ("h", "first", "count"), [(0, 1, 1), (4, 1, 1), (1, 0, 1), (1, 4, 1), (1, 2, 3), (500_000, 1, 1)]
)
def test_samples_of_workers_that_there_are_not_are_refused(h: int, first: int, count: int) -> None:
    with pytest.raises(InvalidValueError, match="of 1 to 3 workers"):
        add(DurationEstimator(3), h, [1.0] * count, first)


def test_no_samples_change_nothing() -> None:
    estimator = DurationEstimator(3)
    add(estimator, 2, [])
    add(estimator, 2, [1.0, 2.0])
    assert estimator.estimate().seconds.tolist() == [1.5, 2.0, 2.0]


def test_samples_count_for_ever_unless_a_half_life_is_given() -> None:
    estimator = DurationEstimator(1)
    add(estimator, 1, [1.0], time=0)
    add(estimator, 1, [3.0], time=1e9)
    assert estimator.estimate().seconds.tolist() == [2.0]


def test_after_a_half_life_a_sample_counts_half() -> None:
    estimator = DurationEstimator(1, half_life=10)
    add(estimator, 1, [1.0], time=0)
    add(estimator, 1, [4.0], time=10)
    assert estimator.estimate().seconds.tolist() == pytest.approx([(1 * 1 + 2 * 4) / 3])


def test_a_late_sample_weighs_what_its_own_iteration_does() -> None:
    in_order, late = DurationEstimator(1, half_life=10), DurationEstimator(1, half_life=10)
    add(in_order, 1, [1.0], time=0)
    add(in_order, 1, [4.0], time=10)
    add(late, 1, [4.0], time=10)
    add(late, 1, [1.0], time=0)
    assert late.estimate().seconds.tolist() == pytest.approx(in_order.estimate().seconds.tolist())


def test_forgetting_goes_on_for_ever() -> None:
    half_life, factor = 2.0, 2**-0.5
    estimator = DurationEstimator(1, half_life=half_life)
    total = weight = 0.0
    for time in range(5000):  # weights grow by 2^2500 meanwhile
        value = 1.0 + time % 7
        add(estimator, 1, [value], time=time)
        total, weight = total * factor + value, weight * factor + 1
    assert estimator.estimate().seconds.tolist() == pytest.approx([total / weight])


def test_a_snapshot_long_after_the_last_sample_holds_everything_as_well() -> None:
    estimator = DurationEstimator(2, half_life=10)
    add(estimator, 1, [3.0], time=0)
    add(estimator, 2, [1.0], first=2, time=300)
    copy = DurationEstimator(2, half_life=10)
    copy.restore(estimator.snapshot(3600), 3600)
    for each in (estimator, copy):
        assert each.estimate().seconds.tolist() == pytest.approx([1.0, 1.0])  # the newer one weighs 2^30 times more
        add(each, 2, [4.0], time=3600)
    assert copy.estimate().seconds.tolist() == estimator.estimate().seconds.tolist()


def test_a_sample_that_hardly_counts_any_more_still_tells_where_nothing_else_does() -> None:
    estimator = DurationEstimator(2, half_life=1)
    add(estimator, 2, [1.0, 5.0], time=0)
    for time in range(1000):
        add(estimator, 1, [2.0], time=time)
    assert estimator.estimate().seconds.tolist() == pytest.approx([2.0, 5.0])


def test_what_was_learnt_stays_when_workers_are_added() -> None:
    estimator = DurationEstimator(2)
    add(estimator, 2, [1.0, 2.0])
    estimator.grow(3)
    assert estimator.workers == 3
    assert estimator.estimate().shortest.tolist() == [1.0, 2.0, 2.0]
    estimator.grow(1)
    assert estimator.workers == 3


@given(st.integers(0, 2**32), st.none() | st.floats(0.5, 50))
@settings(max_examples=60)
def test_a_snapshot_holds_everything(seed: int, half_life: float | None) -> None:
    rng = np.random.default_rng(seed)
    estimator = DurationEstimator(6, half_life)
    for time in range(20):
        estimator.add(int(rng.integers(1, 7)), 1, np.sort(rng.random(6)), time)
    copy = DurationEstimator(2, half_life)
    copy.restore(estimator.snapshot(20), 20)
    for each in (estimator, copy):
        each.add(3, 1, np.array([0.1, 0.2, 0.3]), 21)
    for mine, other in zip(estimator.estimate(), copy.estimate(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12)


@pytest.mark.parametrize("half_life", [None, 1.0, 1000.0])
def test_samples_of_an_estimator_with_another_half_life_are_as_young_as_they_were(half_life: float | None) -> None:
    forgetful = DurationEstimator(1, half_life=10)
    add(forgetful, 1, [1.0], time=0)
    add(forgetful, 1, [4.0], time=10)
    other = DurationEstimator(1, half_life)
    other.restore(forgetful.snapshot(10), 500)
    assert other.estimate().seconds.tolist() == pytest.approx([3.0])
    add(other, 1, [4.5], time=500)  # it weighs as much as the one of time 10, which is two thirds of all
    assert other.estimate().seconds.tolist() == pytest.approx([(3 * 3.0 + 2 * 4.5) / 5])


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [2, 1]},
        {"rows": [1, 9]},
        {"rows": [1]},
        {"workers": 10_000},
        {"means": np.array([1.0, math.nan] * 2).tobytes()},
        {"weights": np.array([1.0, -1.0] * 2).tobytes()},
    ],
)
def test_a_snapshot_that_makes_no_sense_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    estimator = DurationEstimator(2)
    add(estimator, 2, [1.0, 2.0])
    add(estimator, 1, [3.0, 4.0])
    before = estimator.estimate()
    with pytest.raises(ValueError, match=r"durations|column"):
        estimator.restore(replace(estimator.snapshot(0), **change), 0)
    assert estimator.estimate() is before


def test_cvxpy_can_be_chosen_and_finds_the_same() -> None:
    rng = np.random.default_rng(5)
    exact, general = DurationEstimator(6, half_life=2), DurationEstimator(6, half_life=2, solver=Solver.CVXPY)
    for time in range(30):
        h, times = int(rng.integers(1, 5)), np.sort(rng.random(6))
        exact.add(h, 1, times, time)
        general.add(h, 1, times, time)
        np.testing.assert_allclose(general.estimate().seconds, exact.estimate().seconds, rtol=1e-3)
    assert np.isnan(DurationEstimator(2, solver=Solver.CVXPY).estimate().seconds).all()


def test_where_cvxpy_is_not_installed_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(NotSupportedError, match="pip install"):
        DurationEstimator(2, solver=Solver.CVXPY)


@pytest.mark.skipif(not COMPILED, reason="numba is not installed: there is nothing to compile")
def test_all_kernels_can_be_compiled_ahead() -> None:
    kernels()
    used: list[Any] = [add_samples, isotonic.update, diagonal_durations]
    compiled_for = [len(kernel.signatures) for kernel in used]
    assert min(compiled_for) == 1
    estimator = DurationEstimator(7, half_life=3)
    add(estimator, 5, [1.0, 2.0])
    estimator.estimate()
    assert [len(kernel.signatures) for kernel in used] == compiled_for  # what serving needs is what was compiled
