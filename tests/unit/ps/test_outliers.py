"""Norms that are far outside of what is usual are refused, and a change that most workers see is followed."""

from collections.abc import Set
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_ps.outliers import MIN_NORMS, RECENT_NORMS, REMEMBERED_NORMS, Outliers, UsualNorm

RATIO = 1000.0
GARBAGE = 1e25


class Played(Outliers):
    """Outliers, by a norm of the gradient alone."""

    def is_outlier(self, worker: int, norm: float, is_repeated: bool = False) -> bool:
        return self.problem(worker, norm, is_repeated=is_repeated) is not None


def trained(workers: int = 3, iterations: int = 2 * MIN_NORMS, norm: float = 1.0) -> Played:
    outliers = Played(RATIO)
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
    outliers = Played(RATIO)
    assert not outliers.is_outlier(0, 1.0)
    assert outliers.is_outlier(1, GARBAGE)


def test_garbage_that_comes_first_of_all_does_not_stay_usual() -> None:
    outliers = Played(RATIO)
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


def test_late_in_training_a_gradient_may_be_as_large_as_most_were_before() -> None:
    outliers = trained(norm=1.0)
    norm = 1.0
    while norm > 1e-6:
        norm *= 0.995
        assert not any(outliers.is_outlier(worker, norm) for worker in range(3))
    assert not outliers.is_outlier(0, 1.0)
    assert outliers.is_outlier(0, GARBAGE)


def test_what_is_usual_is_known_after_a_restart() -> None:
    before = trained(norm=5.0)
    again = Played(RATIO, before.state)
    assert again.state == before.state
    assert again.is_outlier(0, GARBAGE)
    assert again.is_outlier(0, GARBAGE)
    assert not again.are_most({0}), "the others are known as well"
    assert not again.is_outlier(1, 5.0)


TINY = 1e-6


@pytest.mark.parametrize("restarts", [False, True])
def test_one_of_two_workers_whose_norms_vanish_does_not_get_the_other_one_refused(restarts: bool) -> None:
    outliers = trained(workers=2)
    for i in range(50_000):  # in which the usual norm falls below a thousandth
        assert not outliers.is_outlier(0, TINY)
        assert not outliers.is_outlier(1, 1.0)
        if restarts and i % 1000 == 0:
            outliers = Played(RATIO, outliers.state)
    assert outliers.problem(1, 1.1 * RATIO)
    assert outliers.is_outlier(0, GARBAGE)
    assert outliers.is_outlier(1, GARBAGE)


def test_what_one_of_two_workers_sends_that_is_not_as_usual_is_never_usual_for_itself() -> None:
    """Otherwise garbage that grows by a little less than the ratio each time would be accepted for ever."""
    outliers = trained(workers=2)
    norm = 1.0
    for _ in range(20):
        norm *= 0.9 * RATIO
        assert outliers.is_outlier(0, norm) == (norm > RATIO)
        assert not outliers.is_outlier(1, 1.0)


def test_of_two_workers_that_disagree_from_the_beginning_the_one_with_smaller_norms_is_believed() -> None:
    outliers = Played(RATIO)
    for _ in range(2 * MIN_NORMS):
        assert not outliers.is_outlier(0, TINY)
        assert outliers.is_outlier(1, 1.0)


def test_buffers_are_compared_with_buffers() -> None:
    outliers = Outliers(RATIO)
    for _ in range(2 * MIN_NORMS):
        assert not any(outliers.problem(worker, 1e-3, 50.0) for worker in range(3))
    assert outliers.problem(0, 1e-3, GARBAGE) == "the norm of its buffers is 1e+25, and usually it is 50"
    assert outliers.problem(0, 50.0, 50.0) == "the norm of its gradient is 50, and usually it is 0.001"
    assert outliers.problem(0, 1e-3, 0.0) is None
    assert not outliers.are_most({0})


def test_gradients_of_zero_say_nothing() -> None:
    outliers = Played(RATIO)
    assert not any(outliers.is_outlier(worker, 0.0) for worker in range(5))
    assert not outliers.is_outlier(0, 1.0)


def test_without_a_ratio_nothing_is_refused() -> None:
    outliers = Played(0.0)
    assert not any(outliers.is_outlier(0, norm) for norm in (1.0, 1e30, 1e-30))


@pytest.mark.parametrize(
    ("known", "there", "are_most"),
    [(1, {0}, True), (2, {0}, False), (2, {0, 1}, True), (3, {0}, False), (3, {0, 2}, True), (4, {0, 1}, False)],
)
def test_most_workers_are_more_than_half_of_those_that_have_sent_gradients(
    known: int, there: Set[int], are_most: bool
) -> None:
    assert trained(known).are_most(there) is are_most


def test_workers_that_are_gone_do_not_say_for_ever_what_is_usual() -> None:
    outliers = trained(workers=10)
    refused = 0
    for _ in range(1000):
        refused += sum(outliers.is_outlier(worker, 65536.0) for worker in (10, 11, 12))
        outliers.is_outlier(13, 1.0)
    assert refused <= REMEMBERED_NORMS * 14
    assert outliers.are_most({10, 11, 12})


def test_nobody_is_forgotten_because_a_worker_sends_the_same_garbage_again_and_again() -> None:
    outliers = trained(workers=3)
    for _ in range(10 * REMEMBERED_NORMS):
        assert outliers.is_outlier(0, GARBAGE, is_repeated=True)
    assert not outliers.are_most({0})


def test_workers_that_are_hardly_ever_used_are_not_forgotten() -> None:
    outliers = trained(workers=10)
    for i in range(10 * REMEMBERED_NORMS):
        assert outliers.is_outlier(0, GARBAGE)
        if i % 20 == 0:
            for worker in range(1, 10):
                assert not outliers.is_outlier(worker, 1.0)
    assert not outliers.are_most({0})


NORMS = st.floats(1e-30, 1e30)


@given(st.lists(st.tuples(st.integers(0, 4), NORMS), max_size=100), st.integers(1, 5))
def test_whatever_has_happened_workers_that_are_believed_are_accepted_soon(
    history: list[tuple[int, float]], workers: int
) -> None:
    """If all of them are refused they start over, and only what they have sent lately counts."""
    outliers = Played(RATIO)
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
    """Whatever one worker sends, the others are accepted, and what is far larger than theirs is not."""
    outliers = trained(workers, iterations=RECENT_NORMS, norm=10.0)
    for worker, honest, wrong in gradients:
        if worker % workers:
            assert not outliers.is_outlier(worker % workers, honest)
        else:
            assert outliers.is_outlier(0, wrong) or wrong <= 100.0 * RATIO


@given(st.lists(st.tuples(st.integers(0, 4), NORMS), max_size=100))
def test_the_usual_norm_is_the_median_of_medians(history: list[tuple[int, float]]) -> None:
    usual = UsualNorm()
    norms: dict[int, list[float]] = {}
    for i, (worker, norm) in enumerate(history):
        usual.add(worker, norm)
        norms.setdefault(worker, []).append(norm)
        if usual.workers == norms.keys():  # none is forgotten
            median = median_low(median_low(known[-RECENT_NORMS:]) for known in norms.values())
            assert usual.value >= median
            assert usual.value == median or i >= MIN_NORMS
