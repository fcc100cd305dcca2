"""What the paper leaves open about the gain: docs/decisions says why."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_controller.core.estimators.gain import GainEstimator, GainState, Skipped, gradient_variance
from dbw_controller.core.reports import GradientMoments, IterationSummary
from dbw_controller.core.state import decode, encode

FINE = GradientMoments(2.0, sum_squared_norms=12.0)  # with k = 4: V = (12 − 8)/3


def summary(iteration: int, k: int = 4, loss: float | None = 1.0, **fields: object) -> IterationSummary:
    values: dict[str, object] = {"learning_rate": 0.1, "moments": FINE, **fields}
    return IterationSummary(iteration, k, 1.0, loss, **values)  # type: ignore[arg-type]


def observed(*summaries: IterationSummary) -> GainEstimator:
    estimator = GainEstimator()
    for item in summaries:
        estimator.observe(item)
    return estimator


def test_a_single_gradient_has_no_variance_and_changes_no_average() -> None:
    estimator = observed(summary(0), summary(1, k=1, moments=GradientMoments(7.0, sum_squared_norms=7.0)))
    assert estimator.estimate().variance == pytest.approx(4 / 3)
    assert estimator.skipped[Skipped.SINGLE_GRADIENT] == 1


def test_after_a_single_gradient_there_is_no_smoothness_from_it() -> None:
    one = summary(0, k=1, loss=3.0, moments=GradientMoments(7.0))
    assert observed(one, summary(1, loss=2.0)).estimate().smoothness is None
    assert observed(summary(0, loss=3.0), one, summary(2)).skipped[Skipped.SMOOTHNESS_UNKNOWN] == 0
    assert observed(one, summary(1)).skipped[Skipped.SMOOTHNESS_UNKNOWN] == 1


def test_several_gradients_without_their_spread_have_no_variance_either() -> None:
    assert gradient_variance(4, GradientMoments(7.0)) is Skipped.SPREAD_MISSING


def test_a_single_gradient_will_do_where_workers_split_their_mini_batches() -> None:
    moments = GradientMoments(7.0, within_worker_variance=3.0, degrees_of_freedom=2)
    assert gradient_variance(1, moments) == 3.0


def test_variances_between_and_within_workers_are_pooled_by_what_they_are_worth() -> None:
    moments = GradientMoments(2.0, sum_squared_norms=12.0, within_worker_variance=3.0, degrees_of_freedom=5)
    assert gradient_variance(4, moments) == pytest.approx((4 / 3 * 3 + 3.0 * 5) / 8)


def test_degrees_of_freedom_of_no_variance_count_nothing() -> None:
    moments = GradientMoments(2.0, sum_squared_norms=12.0, degrees_of_freedom=100)
    assert gradient_variance(4, moments) == pytest.approx(4 / 3)


def test_equal_gradients_have_no_variance_though_rounding_says_less_than_none() -> None:
    assert gradient_variance(4, GradientMoments(2.0, sum_squared_norms=8.0 - 1e-6)) == 0.0


@pytest.mark.parametrize(
    "moments",
    [
        GradientMoments(8.0, sum_squared_norms=8.0),  # ‖ḡ‖² cannot be as large as the sum of four
        GradientMoments(-1.0, sum_squared_norms=8.0),
        GradientMoments(1.0, variance=-2.0),
        GradientMoments(1.0, within_worker_variance=-1.0, degrees_of_freedom=3),
    ],
)
def test_impossible_moments_are_left_out_and_counted(moments: GradientMoments) -> None:
    estimator = observed(summary(0), summary(1, moments=moments))
    assert estimator.skipped[Skipped.MOMENTS_IMPOSSIBLE] == 1
    assert estimator.estimate().variance == pytest.approx(4 / 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_left_out_and_counted(bad: float) -> None:
    estimator = observed(
        summary(0, loss=3.0),
        summary(1, loss=bad),
        summary(2, loss=2.0, moments=GradientMoments(bad, sum_squared_norms=1.0)),
        summary(3, loss=1.0, moments=GradientMoments(1.0, sum_squared_norms=bad)),
        summary(4, loss=1.0, learning_rate=bad),
    )
    assert estimator.skipped[Skipped.LOSS_NOT_FINITE] == 1
    assert estimator.skipped[Skipped.MOMENTS_NOT_FINITE] == 2
    assert estimator.skipped[Skipped.LEARNING_RATE_IMPOSSIBLE] == 1
    estimate = estimator.estimate()
    assert estimate.variance == pytest.approx(4 / 3)
    assert estimate.learning_rate == 0.1


def test_a_negative_smoothness_counts_in_the_average_but_the_average_is_not_negative() -> None:
    # ‖∇F‖² = 2 − 1/3, so η‖∇F‖² = 1/6 and the denominator is 0.01·2; losses fall by 1, then rise by 1.
    down, up = 2 * (1 / 6 - 1) / 0.02, 2 * (1 / 6 + 1) / 0.02
    both = observed(summary(0, loss=2.0), summary(1, loss=1.0), summary(2, loss=2.0))
    assert both.estimate().smoothness == pytest.approx((down + up) / 2)
    assert observed(summary(0, loss=2.0), summary(1, loss=1.0)).estimate().smoothness == 0.0


def test_where_all_gradients_are_zero_nothing_is_learnt_about_smoothness() -> None:
    zero = GradientMoments(0.0, sum_squared_norms=0.0)
    estimator = observed(summary(0, moments=zero), summary(1))
    assert estimator.estimate().smoothness is None
    assert estimator.skipped[Skipped.SMOOTHNESS_UNKNOWN] == 1


def test_the_smoothness_uses_the_rate_of_the_step_and_the_gain_the_latest_one() -> None:
    estimator = observed(summary(0, loss=2.0, learning_rate=0.5), summary(1, loss=1.9, learning_rate=0.05))
    squared_norm = 2 - 1 / 3
    expected = 2 * (0.5 * squared_norm - 0.1) / (0.25 * 2.0)
    estimate = estimator.estimate()
    assert estimate.smoothness == pytest.approx(expected)
    gains = estimate.gains(2)
    assert gains is not None
    curvature = expected * 0.05**2 / 2
    assert gains[0] == pytest.approx((0.05 - curvature) * squared_norm - curvature * 4 / 3)


def test_a_rate_of_zero_is_fine_and_says_nothing_about_smoothness() -> None:
    estimator = observed(summary(0, learning_rate=0.0), summary(1, learning_rate=0.0))
    assert estimator.estimate().learning_rate == 0.0
    assert estimator.estimate().smoothness is None


def test_iterations_that_do_not_follow_each_other_say_nothing_about_smoothness() -> None:
    assert observed(summary(0), summary(2)).estimate().smoothness is None


def test_what_is_not_told_is_not_known() -> None:
    estimate = observed(summary(0, loss=None, learning_rate=None, moments=None)).estimate()
    assert estimate.gains(4) is None
    assert (estimate.squared_norm, estimate.variance, estimate.smoothness, estimate.learning_rate) == (None,) * 4


numbers = st.none() | st.floats()


@given(
    st.lists(
        st.builds(
            IterationSummary,
            iteration=st.integers(0, 5),
            k=st.integers(1, 8),
            duration_seconds=st.just(1.0),
            loss=numbers,
            learning_rate=numbers,
            moments=st.none()
            | st.builds(GradientMoments, st.floats(), numbers, numbers, numbers, degrees_of_freedom=st.integers(0, 9)),
        )
    )
)
def test_no_numbers_whatsoever_break_it_and_snapshots_hold_everything(summaries: list[IterationSummary]) -> None:
    estimator = observed(*summaries)
    gains = estimator.estimate().gains(4)
    assert gains is None or len(gains) == 4
    copy = GainEstimator()
    copy.restore(decode(encode(estimator.snapshot()), GainState))
    assert copy.snapshot() == estimator.snapshot()
    assert copy.estimate() == estimator.estimate()
