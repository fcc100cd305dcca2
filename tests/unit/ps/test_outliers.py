"""Norms that are far outside of what is usual are refused, and no training ever stands still for it."""

from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_ps.outliers import MIN_NORMS, RECENT_NORMS, Outliers

RATIO = 1000.0
GARBAGE = 1e25


def trained(workers: int = 3, iterations: int = 2 * MIN_NORMS, norm: float = 1.0) -> Outliers:
    outliers = Outliers(RATIO)
    for _ in range(iterations):
        assert not any(outliers.is_outlier(worker, norm) for worker in range(workers))
    return outliers


@pytest.mark.parametrize("workers", [1, 2, 3, 10])
@pytest.mark.parametrize("iterations", [1, 2, 100])
def test_a_single_absurd_norm_is_refused(workers: int, iterations: int) -> None:
    outliers = trained(workers, iterations)
    assert outliers.is_outlier(0, GARBAGE)
    assert not any(outliers.is_outlier(worker, 1.0) for worker in range(workers))


def test_norms_within_the_ratio_are_accepted() -> None:
    outliers = trained()
    assert not outliers.is_outlier(0, 0.9 * RATIO)
    assert not outliers.is_outlier(1, 1e-9)
    assert outliers.is_outlier(2, 1.1 * RATIO)


@pytest.mark.parametrize("workers", [2, 3, 10])
def test_a_worker_that_always_sends_garbage_is_always_refused(workers: int) -> None:
    """Also if it is the first one in most iterations, and others are hardly ever used."""
    outliers = trained(workers)
    for i in range(100):
        assert outliers.is_outlier(0, GARBAGE)
        if i % 10 == 0:
            assert not outliers.is_outlier(1, 1.0)


def test_the_first_norms_are_compared_with_what_there_is() -> None:
    outliers = Outliers(RATIO)
    assert not outliers.is_outlier(0, 1.0)
    assert outliers.is_outlier(1, GARBAGE)


def test_garbage_that_comes_first_of_all_does_not_stay_usual() -> None:
    outliers = Outliers(RATIO)
    assert not outliers.is_outlier(0, GARBAGE)  # with nothing to compare it with
    assert not outliers.is_outlier(1, 1.0)
    assert outliers.is_outlier(0, GARBAGE)


@pytest.mark.parametrize("workers", [1, 2, 3, 10])
def test_a_change_that_all_workers_see_is_followed_at_their_second_gradient(workers: int) -> None:
    """Such as another scale of the loss."""
    outliers = trained(workers)
    first = [outliers.is_outlier(worker, 65536.0) for worker in range(workers)]
    second = [outliers.is_outlier(worker, 65536.0) for worker in range(workers)]
    assert all(first)
    assert not all(second), "at least one is used, and the iteration ends"
    assert not any(outliers.is_outlier(worker, 65536.0) for worker in range(workers))


def test_late_in_training_a_gradient_may_be_as_long_as_most_were_before() -> None:
    outliers = trained(norm=1.0)
    norm = 1.0
    while norm > 1e-6:
        norm *= 0.995
        assert not any(outliers.is_outlier(worker, norm) for worker in range(3))
    assert not outliers.is_outlier(0, 1.0)
    assert outliers.is_outlier(0, GARBAGE)


def test_what_is_usual_is_known_after_a_restart() -> None:
    again = Outliers(RATIO, trained(norm=5.0).usual)
    assert again.is_outlier(0, GARBAGE)
    assert again.is_outlier(0, GARBAGE)
    assert not again.is_outlier(1, 5.0)


def test_gradients_of_zero_say_nothing() -> None:
    outliers = Outliers(RATIO)
    assert not any(outliers.is_outlier(worker, 0.0) for worker in range(5))
    assert not outliers.is_outlier(0, 1.0)


def test_without_a_ratio_nothing_is_refused() -> None:
    outliers = Outliers(0.0)
    assert not any(outliers.is_outlier(0, norm) for norm in (1.0, 1e30, 1e-30))


NORMS = st.floats(1e-30, 1e30)


@given(st.lists(st.tuples(st.integers(0, 4), NORMS), max_size=100), st.integers(1, 5))
def test_whatever_has_happened_workers_that_are_left_are_accepted_soon(
    history: list[tuple[int, float]], workers: int
) -> None:
    """If all of them are refused they start over, and only what they have sent lately counts."""
    outliers = Outliers(RATIO)
    for worker, norm in history:
        outliers.is_outlier(worker, norm)
    for _attempt in range(RECENT_NORMS):
        refused = [outliers.is_outlier(worker, 7.0 + worker) for worker in range(workers)]
        if not all(refused):
            return
        outliers.keep_only(set(range(workers)))
    raise AssertionError("refused again and again")


@given(
    st.integers(3, 7),
    st.lists(st.tuples(st.integers(0, 6), st.floats(1.0, 100.0), st.floats(0.0, 1e30)), min_size=20, max_size=100),
)
def test_a_minority_moves_nothing(workers: int, gradients: list[tuple[int, float, float]]) -> None:
    """Whatever one worker sends, the others are accepted, and what is far longer than theirs is not."""
    outliers = trained(workers, iterations=RECENT_NORMS, norm=10.0)
    for worker, honest, wrong in gradients:
        if worker % workers:
            assert not outliers.is_outlier(worker % workers, honest)
        else:
            assert outliers.is_outlier(0, wrong) or wrong <= 100.0 * RATIO


@given(st.lists(st.tuples(st.integers(0, 4), NORMS), max_size=100))
def test_the_usual_norm_is_the_median_of_medians(history: list[tuple[int, float]]) -> None:
    outliers = Outliers(RATIO)
    norms: dict[int, list[float]] = {}
    for i, (worker, norm) in enumerate(history):
        outliers.is_outlier(worker, norm)
        norms.setdefault(worker, []).append(norm)
        median = median_low(median_low(known[-RECENT_NORMS:]) for known in norms.values())
        assert outliers.usual >= median
        assert outliers.usual == median or i >= MIN_NORMS
