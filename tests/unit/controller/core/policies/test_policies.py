"""What all policies have in common, and what the paper leaves open about them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_controller.core.errors import InvalidValueError
from dbw_controller.core.estimators.durations import DurationEstimator
from dbw_controller.core.estimators.gain import GainEstimate
from dbw_controller.core.policies import (
    POLICIES,
    BlindDbw,
    Choice,
    Dbw,
    Observation,
    Policy,
    Static,
    Sync,
    create_policy,
    policy_name,
    policy_parameters,
    register_policy,
)
from dbw_controller.core.reasons import Input, Reason

Observe = Callable[..., Observation]
SMOOTH = GainEstimate(squared_norm=4.0, variance=0.0, smoothness=1.0, learning_rate=1.0)
ALL = [create_policy(name, {"k": 2} if name == "static" else {}) for name in POLICIES]


def test_static_chooses_its_k_or_all_that_there_are(observe: Observe) -> None:
    assert Static(3).choose(observe([1.0] * 4)).k == 3
    assert Static(9).choose(observe([1.0] * 4)).k == 4
    assert Static(3).choose(observe()).reason is Reason.FIXED


def test_sync_chooses_all(observe: Observe) -> None:
    assert (Sync().choose(observe([1.0] * 7)).k, Sync().choose(observe()).reason) == (7, Reason.ALL_WORKERS)


def test_dbw_waits_for_all_until_it_can_compare(observe: Observe) -> None:
    assert Dbw().choose(observe([1.0] * 4)).reason is Reason.NOT_ENOUGH_DATA  # no gain
    assert Dbw().choose(observe(gain=SMOOTH)).reason is Reason.NOT_ENOUGH_DATA  # no durations
    assert Dbw().choose(observe(gain=SMOOTH)).k == 4


def test_a_k_of_unknown_duration_is_not_chosen(observe: Observe) -> None:
    seen = observe([1.0, 1.0, 1.0], gain=SMOOTH)
    estimator = DurationEstimator(3)
    estimator.add(3, 2, seen.durations.seconds[:1], 0.0)  # nothing about k = 1
    choice = Dbw().choose(observe([1.0] * 3, gain=SMOOTH, duration_estimator=estimator))
    assert choice.durations is not None
    assert np.isnan(choice.durations.seconds[0])
    assert choice.k == 3


def test_iterations_that_take_no_time_are_the_best(observe: Observe) -> None:
    assert BlindDbw().choose(observe([0.0, 0.0, 1.0])).k == 2


def test_of_those_that_are_equally_good_the_largest_k_is_chosen(observe: Observe) -> None:
    """With a smoothness of 0 all k have the same gain: more gradients in the same time are never worse."""
    assert Dbw().choose(observe([1.0, 1.0, 1.0], gain=SMOOTH)).k == 3
    assert Dbw().choose(observe([1.0, 1.0, 1.5], gain=SMOOTH)).k == 2


def test_a_negative_loss_grows_relative_to_its_size(observe: Observe) -> None:
    seen = {"gain": SMOOTH, "previous_k": 1}
    steady = observe([1.0, 2.0], loss=-1.0, loss_before=-1.0, **seen)
    growing = observe([1.0, 2.0], loss=-0.9, loss_before=-1.0, **seen)
    assert Dbw().choose(steady).k == 1
    assert Dbw().choose(growing).k == 2


@pytest.mark.parametrize("gain", [GainEstimate(math.inf, 1.0, 1.0, 1.0), GainEstimate(1e300, 1e300, 1e300, 1e300)])
def test_gains_that_are_not_finite_are_not_compared(observe: Observe, gain: GainEstimate) -> None:
    assert Dbw().choose(observe([1.0] * 4, gain=gain)).reason is Reason.NOT_ENOUGH_DATA


@pytest.mark.parametrize("policy", ALL, ids=policy_name)
@given(data=st.data())
def test_every_choice_is_within_bounds_and_says_why(policy: Policy, data: st.DataObject) -> None:
    numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
    workers = data.draw(st.integers(1, 6))
    estimator = DurationEstimator(workers)
    for _ in range(data.draw(st.integers(0, 4))):
        h, times = (
            data.draw(st.integers(1, workers)),
            data.draw(st.lists(st.floats(0, 9), min_size=1, max_size=workers)),
        )
        estimator.add(h, 1, np.array(times), 0.0)
    positive = st.none() | st.floats(0, allow_nan=False, allow_infinity=False)
    choice = policy.choose(
        Observation(
            iteration=data.draw(st.integers(0, 9)),
            workers=workers,
            learnt_iterations=data.draw(st.integers(0, 9)),
            previous_k=data.draw(st.none() | st.integers(1, 9)),
            loss=data.draw(numbers),
            loss_before=data.draw(numbers),
            first_loss=data.draw(numbers),
            gain=GainEstimate(*(data.draw(positive) for _ in range(4))),
            duration_estimator=estimator,
        )
    )
    assert 1 <= choice.k <= workers
    assert choice.explanation


@pytest.mark.parametrize("policy", ALL, ids=policy_name)
def test_a_policy_can_be_made_again_from_its_name_and_parameters(policy: Policy) -> None:
    assert create_policy(policy_name(policy), policy_parameters(policy)) == policy


class NotADataclass:
    """A rule whose parameters nobody can know."""

    inputs: ClassVar[frozenset[Input]] = frozenset()

    def choose(self, seen: Observation) -> Choice:
        return Choice(seen.workers, Reason.CUSTOM, "all")


@dataclass(frozen=True)
class WithText(Sync):
    """A policy with a parameter that is not a number."""

    text: str = "x"


@dataclass(frozen=True)
class ChoosesNothing:
    """A dataclass that is not a rule."""

    inputs: ClassVar[frozenset[Input]] = frozenset()


@pytest.mark.parametrize("kind", [NotADataclass, WithText, ChoosesNothing, Sync(), "sync"])
def test_what_is_not_a_policy_is_not_registered(kind: Any) -> None:
    with pytest.raises(InvalidValueError, match="own"):
        register_policy("own", kind)
    assert "own" not in POLICIES


def test_a_name_that_is_taken_stays_so() -> None:
    with pytest.raises(InvalidValueError, match="dbw"):
        register_policy("dbw", Sync)
    register_policy("dbw", Dbw)
    assert POLICIES["dbw"] is Dbw


def test_parameters_have_their_defaults() -> None:
    assert create_policy("dbw") == Dbw(1.01)
    assert create_policy("dbw", {"loss_increase_factor": 2}) == Dbw(2.0)
    assert create_policy("static", {"k": 3.0}) == Static(3)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("magic", {}, "one of adasync, b-dbw, dbw, dbw-plus, static, sync"),
        ("dbw", {"beta": 1.0}, "'beta'; it must be one of loss_increase_factor"),
        ("sync", {"k": 1.0}, "left out: it has none"),
        ("dbw", {"loss_increase_factor": 0.5}, "at least 1"),
        ("dbw", {"loss_increase_factor": math.nan}, "finite"),
        ("static", {}, "policy.k is None; it must be given"),
        ("static", {"k": 2.5}, "of type int"),
        ("static", {"k": math.inf}, "finite"),
        ("static", {"k": 0}, "between 1 and"),
        ("adasync", {"initial_k": 0}, "between 1 and"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said(name: str, parameters: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        create_policy(name, parameters)
