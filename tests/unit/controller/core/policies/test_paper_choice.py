"""Section 3.3 of the paper: the choice of k_t; and 4, its blind variant."""

from collections.abc import Callable

import pytest

from dbw_controller.core.estimators.gain import GainEstimate
from dbw_controller.core.policies import BlindDbw, Dbw, Observation
from dbw_controller.core.reasons import Reason

Observe = Callable[..., Observation]

# With η = 1 and L = 1, Ĝ_k = ‖∇F‖²/2 − V/(2k).
NOISY = GainEstimate(squared_norm=4.0, variance=6.0, smoothness=1.0, learning_rate=1.0)  # −1, 0.5, 1, 1.25
SMOOTH = GainEstimate(squared_norm=4.0, variance=0.0, smoothness=1.0, learning_rate=1.0)  # 2 for every k
HOPELESS = GainEstimate(squared_norm=1.0, variance=6.0, smoothness=1.0, learning_rate=1.0)  # −2.5 … −0.25


def test_the_largest_gain_per_second_is_chosen(observe: Observe) -> None:
    """e:greedy: 0.5/1.1 < 1/1.2 > 1.25/2."""
    choice = Dbw().choose(observe([1.0, 1.1, 1.2, 2.0], gain=NOISY))
    assert (choice.k, choice.reason) == (3, Reason.BEST_RATE)
    assert choice.gains is not None
    assert choice.gains.tolist() == pytest.approx([-1.0, 0.5, 1.0, 1.25])


def test_without_noise_the_fastest_is_chosen(observe: Observe) -> None:
    """Section 4: "loosing a bit in terms of the gain, but significantly speeding up the duration of each iteration"."""
    assert Dbw().choose(observe([1.0, 1.1, 1.2, 2.0], gain=SMOOTH)).k == 1


def test_where_round_trips_do_not_vary_all_are_waited_for(observe: Observe) -> None:
    """Section 4: no time is lost by waiting for all, and the gain is largest."""
    assert Dbw().choose(observe([1.0, 1.0, 1.0, 1.0], gain=NOISY)).k == 4


def test_a_negative_gain_is_not_chosen_however_short_its_iteration(observe: Observe) -> None:
    """e:greedy "does not select values of k for which Ĝ < 0"."""
    choice = Dbw().choose(observe([0.001, 10.0, 100.0, 1000.0], gain=NOISY))
    assert (choice.k, choice.reason) == (2, Reason.BEST_RATE)


def test_where_all_gains_are_negative_all_are_waited_for(observe: Observe) -> None:
    """… "unless Ĝ < 0 for all values k, in which case k_t = n"."""
    choice = Dbw().choose(observe([1.0, 1.1, 1.2, 2.0], gain=HOPELESS))
    assert (choice.k, choice.reason) == (4, Reason.NO_POSITIVE_GAIN)


@pytest.mark.parametrize(("loss", "previous_k", "expected"), [(1.02, 2, 3), (1.02, 3, 4), (1.005, 2, 1), (0.9, 3, 1)])
def test_a_growing_loss_forces_more_than_before(observe: Observe, loss: float, previous_k: int, expected: int) -> None:
    """e:greedy2 with β = 1.01: k_t ≥ k_{t−1} + 1 if F̂_{t−1} > β F̂_{t−2}."""
    seen = observe([1.0, 1.1, 1.2, 2.0], gain=SMOOTH, loss=loss, loss_before=1.0, previous_k=previous_k)
    choice = Dbw().choose(seen)
    assert choice.k == expected
    assert choice.reason is (Reason.LOSS_INCREASED if loss > 1.01 else Reason.BEST_RATE)


def test_a_growing_loss_does_not_lower_a_larger_choice(observe: Observe) -> None:
    """e:greedy2 is a maximum."""
    seen = observe([1.0, 1.1, 1.2, 2.0], gain=NOISY, loss=2.0, loss_before=1.0, previous_k=1)
    assert (Dbw().choose(seen).k, Dbw().choose(seen).reason) == (3, Reason.BEST_RATE)


def test_a_growing_loss_changes_nothing_where_all_were_waited_for(observe: Observe) -> None:
    """e:greedy2: only if k_{t−1} < n."""
    seen = observe([1.0, 1.1, 1.2, 2.0], gain=SMOOTH, loss=2.0, loss_before=1.0, previous_k=4)
    assert Dbw().choose(seen).k == 1


def test_how_much_the_loss_must_grow_can_be_chosen(observe: Observe) -> None:
    """β ≥ 1."""
    seen = observe([1.0, 1.1, 1.2, 2.0], gain=SMOOTH, loss=1.2, loss_before=1.0, previous_k=2)
    assert Dbw(loss_increase_factor=1.5).choose(seen).k == 1
    assert Dbw(loss_increase_factor=1.0).choose(seen).k == 3


def test_the_first_k_is_n(observe: Observe) -> None:
    """Section 3.2: "In our design, k_0 = n"."""
    for policy in (Dbw(), BlindDbw()):
        choice = policy.choose(observe(learnt_iterations=0))
        assert (choice.k, choice.reason) == (4, Reason.FIRST_ITERATION)


def test_blind_dbw_takes_k_for_the_gain(observe: Observe) -> None:
    """Section 4: 1/1, 2/1.1, 3/1.2, 4/2."""
    choice = BlindDbw().choose(observe([1.0, 1.1, 1.2, 2.0]))
    assert (choice.k, choice.reason) == (3, Reason.BEST_RATE)
    assert choice.gains is not None
    assert choice.gains.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_blind_dbw_heeds_a_growing_loss_as_well(observe: Observe) -> None:
    """Only the gain is another one."""
    seen = observe([1.0, 1.1, 1.2, 2.0], loss=2.0, loss_before=1.0, previous_k=3)
    assert (BlindDbw().choose(seen).k, BlindDbw().choose(seen).reason) == (4, Reason.LOSS_INCREASED)
