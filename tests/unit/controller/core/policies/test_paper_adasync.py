"""Section 4.5 of the paper: AdaSync, for shifted exponential round trips."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_controller.core.policies import AdaSync, Observation
from dbw_controller.core.reasons import Reason

Observe = Callable[..., Observation]


@given(st.integers(2, 1000), st.integers(1, 999), st.floats(1e-6, 1e6))
def test_the_root_satisfies_the_optimality_condition(workers: int, initial_k: int, ratio: float) -> None:
    """K²/(n − K) = A·F_0/F_t with A = K_0²/(n − K_0)."""
    if initial_k >= workers:
        assert AdaSync(initial_k).root(ratio, workers) == workers
        return
    k = AdaSync(initial_k).root(ratio, workers)
    assert 0 < k < workers
    assert k**2 / (workers - k) == pytest.approx(initial_k**2 / (workers - initial_k) * ratio, rel=1e-6)


@pytest.mark.parametrize(("loss", "expected"), [(2.0, 1), (0.5, 2), (0.02, 8), (0.002, 13)])
def test_k_grows_as_the_loss_falls(observe: Observe, loss: float, expected: int) -> None:
    """By hand with n = 16, K_0 = 1, F_0 = 2: c = 2/(15·F), K = (−c + √(c² + 64c))/2."""
    c = 2 / (15 * loss)
    by_hand = (-c + (c * c + 64 * c) ** 0.5) / 2
    choice = AdaSync().choose(observe([1.0] * 16, first_loss=2.0, loss=loss))
    assert choice.k == round(by_hand)
    assert (choice.k, choice.reason) == (expected, Reason.LOSS_RATIO)


def test_the_first_k_is_the_initial_one(observe: Observe) -> None:
    choice = AdaSync(initial_k=3).choose(observe([1.0] * 16, learnt_iterations=0))
    assert (choice.k, choice.reason) == (3, Reason.FIRST_ITERATION)
    assert AdaSync(initial_k=3).choose(observe([1.0] * 16, first_loss=2.0, loss=2.0)).k == 3
    assert AdaSync(initial_k=30).choose(observe([1.0] * 16, learnt_iterations=0)).k == 16


def test_it_does_not_depend_on_round_trips(observe: Observe) -> None:
    """It says: "The approximated formula used by AdaSync … does not depend on α"."""
    losses = {"first_loss": 2.0, "loss": 0.1}
    assert (
        AdaSync().choose(observe([1.0] * 4, **losses)).k == AdaSync().choose(observe([1.0, 5.0, 9.0, 99.0], **losses)).k
    )


@pytest.mark.parametrize(
    ("first", "loss", "expected"), [(2.0, 0.0, 16), (2.0, -1.0, 16), (-1.0, 0.5, 1), (2.0, 1e300, 1)]
)
def test_losses_that_it_was_not_made_for(observe: Observe, first: float, loss: float, expected: int) -> None:
    assert AdaSync().choose(observe([1.0] * 16, first_loss=first, loss=loss)).k == expected
