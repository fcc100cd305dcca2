"""Section 3.1 of the paper: by how much an iteration lowers the loss."""

import numpy as np
import pytest

from dbw_controller.core.estimators.gain import (
    GainEstimator,
    GainState,
    Step,
    gradient_variance,
    smoothness,
    squared_gradient_norm,
)
from dbw_controller.core.reports import GradientMoments, IterationSummary
from tests.states import raw

GRADIENTS = np.array([[1.0, 2.0], [3.0, -2.0], [2.0, 3.0]])  # their mean is (2, 1)


def moments(gradients: np.ndarray) -> GradientMoments:
    """What a parameter server sends: it has only the sums."""
    mean = gradients.sum(axis=0) / len(gradients)
    return GradientMoments(float(mean @ mean), sum_squared_norms=float((gradients**2).sum()))


def test_the_variance_is_the_unbiased_one_summed_over_components() -> None:
    """e:sumvariancekt: deviations (−1, 1), (1, −3), (0, 2) have Σ‖·‖² = 2 + 10 + 4 = 16, over k − 1 = 2."""
    assert gradient_variance(3, moments(GRADIENTS)) == pytest.approx(8.0)
    assert gradient_variance(3, GradientMoments(5.0, variance=8.0)) == 8.0


def test_the_squared_norm_is_that_of_the_mean_less_its_noise() -> None:
    """e:normsquarekt: ‖(2, 1)‖² − 8/3."""
    assert squared_gradient_norm(3, 5.0, 8.0) == pytest.approx(5 - 8 / 3)


def test_the_squared_norm_is_not_negative() -> None:
    """e:normsquarekt: the max with 0."""
    assert squared_gradient_norm(3, 1.0, 8.0) == 0.0


def test_both_are_unbiased() -> None:
    """e:second_moment: 𝔼‖g_t‖² = ‖∇F‖² + V/k, so that the estimates are right on average."""
    rng = np.random.default_rng(0)
    gradient, deviation, k = np.array([1.0, -2.0, 0.5]), np.array([0.4, 0.1, 0.6]), 4
    variances, squared_norms = [], []
    for _ in range(4000):
        sent = moments(gradient + deviation * rng.standard_normal((k, 3)))
        variance = gradient_variance(k, sent)
        assert isinstance(variance, float)
        variances.append(variance)
        squared_norms.append(squared_gradient_norm(k, sent.mean_squared_norm, variance))
    assert np.mean(variances) == pytest.approx(0.16 + 0.01 + 0.36, rel=0.03)
    assert np.mean(squared_norms) == pytest.approx(1 + 4 + 0.25, rel=0.03)


def test_the_smoothness_is_what_makes_the_expected_decrease_the_observed_one() -> None:
    """e:estimateL, by hand: 2·(0.1·4 − (2 − 1.9)) / (0.01·(4 + 6/3)) = 0.6/0.06."""
    step = Step(iteration=6, k=3, loss=2.0, learning_rate=0.1, squared_norm=4.0, variance=6.0)
    assert smoothness(step, next_loss=1.9) == pytest.approx(10.0)
    # Substituted into e:exp_decrease it gives the decrease back: (η − Lη²/2)·4 − Lη²/2·6/3.
    decrease = (0.1 - 10 * 0.01 / 2) * 4 - 10 * 0.01 / 2 * 6 / 3
    assert decrease == pytest.approx(2.0 - 1.9)


def test_the_smoothness_of_a_quadratic_is_found() -> None:
    """For F(w) = L‖w‖²/2 without noise, e:lower_bound holds with equality, so that L̂ is L."""
    curvature, rate, k = 3.0, 0.1, 2
    estimator = GainEstimator(window=5)
    w = np.array([1.0, -0.5])
    for t in range(4):
        gradient = curvature * w
        loss = curvature * float(w @ w) / 2
        estimator.observe(IterationSummary(t, k, 1.0, loss, rate, moments(np.array([gradient, gradient]))))
        w = w - rate * gradient
    assert estimator.estimate().smoothness == pytest.approx(curvature)


def observe(estimator: GainEstimator, iteration: int, variance: float, mean: float, loss: float) -> None:
    sent = GradientMoments(mean, variance=variance)
    estimator.observe(IterationSummary(iteration, 2, 1.0, loss, 0.5, sent))


def test_the_estimates_are_averages_over_the_last_d() -> None:
    """e:varianceoverD, e:normsquareoverD, e:LoverD with D = 2."""
    estimator = GainEstimator(window=2)
    losses = [5.0, 4.0, 3.5, 3.4]
    for t, loss in enumerate(losses):
        observe(estimator, t, variance=2.0 * (t + 1), mean=10.0 + t, loss=loss)
    estimate = estimator.estimate()
    assert estimate.variance == pytest.approx((6.0 + 8.0) / 2)
    assert estimate.squared_norm == pytest.approx(((12 - 6 / 2) + (13 - 8 / 2)) / 2)
    # L⁺ of iterations 2 and 3, from the steps of 1 and 2: ‖∇F‖² is 11 − 4/2 = 9 in both, and V/k is 2 and 3.
    expected = [2 * (0.5 * 9 - 0.5) / (0.25 * 11), 2 * (0.5 * 9 - 0.1) / (0.25 * 12)]
    assert estimate.smoothness == pytest.approx(sum(expected) / 2)


def test_before_there_are_d_estimates_all_there_are_count() -> None:
    """It says: "averages the past D estimates (or the first t−1 if t ≤ D)"."""
    estimator = GainEstimator(window=5)
    observe(estimator, 0, variance=2.0, mean=10.0, loss=5.0)
    observe(estimator, 1, variance=4.0, mean=10.0, loss=4.0)
    assert estimator.estimate().variance == pytest.approx(3.0)


def test_the_gain_of_every_k() -> None:
    """e:gain by hand: with L = 2, η = 0.5, ‖∇F‖² = 9, V = 4, Lη²/2 = 0.25, so (0.5 − 0.25)·9 − 0.25·4/k."""
    estimator = GainEstimator()
    estimator.restore(GainState(raw([4.0]), raw([9.0]), raw([2.0]), last=None, learning_rate=0.5))
    gains = estimator.estimate().gains(4)
    assert gains is not None
    assert gains.tolist() == pytest.approx([1.25, 1.75, 2.25 - 1 / 3, 2.0])


def test_the_gain_grows_with_k() -> None:
    """It says: "Equation (e:exp_decrease) shows that the gain increases as k increases"."""
    estimator = GainEstimator()
    observe(estimator, 0, variance=2.0, mean=10.0, loss=5.0)
    observe(estimator, 1, variance=4.0, mean=10.0, loss=4.0)
    gains = estimator.estimate().gains(16)
    assert gains is not None
    assert (np.diff(gains) > 0).all()
