"""How far the loss is above the noise floor, from what iterations tell of it."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_controller.core.estimators.noise_floor import (
    CAUTION,
    MOST_CAUTIOUS,
    PATIENCE,
    PROGRESS,
    RELATIVE_PATIENCE,
    RELIEF,
    NoiseFloor,
)
from dbw_controller.core.reports import GradientMoments, IterationSummary
from dbw_controller.core.state import decode, encode

FALLING = 0.9 * PROGRESS  # a loss that is so many times the one before has improved


def summary(loss: float | None = 1.0, variance: float | None = 8.0, k: int = 4, **fields: Any) -> IterationSummary:
    told = {"learning_rate": 0.5, "moments": GradientMoments(1.0, variance=variance), **fields}
    return IterationSummary(0, k, 1.0, loss, **told)


def observed(*summaries: IterationSummary) -> NoiseFloor:
    floor = NoiseFloor()
    for item in summaries:
        floor.observe(item)
    return floor


def stalled(floor: NoiseFloor, loss: float = 1.0) -> int:
    """How many iterations with the same loss it takes until caution grows."""
    before, iterations = floor.caution, 0
    while floor.caution == before:
        floor.observe(summary(loss))
        iterations += 1
    return iterations


positive = st.floats(1e-6, 1e6)


@given(positive, positive, positive, st.integers(2, 100), st.integers(1, 9))
def test_the_floor_is_a_quarter_of_rate_times_variance_over_the_loss(
    rate: float, variance: float, loss: float, k: int, iterations: int
) -> None:
    floor = observed(*[summary(loss, variance, k, learning_rate=rate)] * iterations)
    assert floor.mean_loss.value == pytest.approx(loss)
    assert floor.estimate() == pytest.approx(rate * variance / (4 * loss))


@pytest.mark.parametrize("missing", [{"loss": None}, {"learning_rate": None}, {"moments": None}, {"variance": None}])
def test_nothing_is_known_until_all_was_told(missing: dict[str, Any]) -> None:
    assert NoiseFloor().estimate() is None
    assert observed(summary(**missing), summary(**missing)).estimate() is None
    assert observed(summary(**missing), summary()).estimate() == pytest.approx(1.0)


def test_what_is_told_once_counts_until_it_is_told_again() -> None:
    floor = observed(summary(), *[IterationSummary(1, 4, 1.0)] * 20)
    assert floor.estimate() == pytest.approx(1.0)


def test_the_learning_rate_is_the_last_one() -> None:
    assert observed(summary(), summary(learning_rate=0.25)).estimate() == pytest.approx(0.5)
    assert observed(summary(), summary(learning_rate=0.0)).estimate() == 0.0


def test_new_variances_count_more_than_old_ones_and_those_of_more_gradients_more_than_others() -> None:
    equal = observed(summary(variance=0.0), summary()).estimate()
    heavier = observed(summary(variance=0.0), summary(k=8)).estimate()
    lighter = observed(summary(variance=0.0, k=8), summary()).estimate()
    assert equal is not None
    assert heavier is not None
    assert lighter is not None
    assert 0.0 < lighter < equal < heavier < 1.0
    assert equal > 0.5
    assert observed(summary(variance=0.0), *[summary()] * (PATIENCE - 1)).estimate() == pytest.approx(1.0, rel=0.1)


def test_a_variance_within_workers_counts_by_its_degrees_of_freedom() -> None:
    def within(degrees: int) -> float | None:
        moments = GradientMoments(1.0, within_worker_variance=8.0, degrees_of_freedom=degrees)
        return observed(summary(variance=0.0), summary(k=1, moments=moments)).estimate()

    few, many = within(1), within(1000)
    assert few is not None
    assert 0.0 < few < 0.5
    assert many == pytest.approx(1.0, rel=0.01)


def test_losses_of_more_gradients_count_more() -> None:
    few, many = (
        observed(summary(0.0, k=8), summary(k=1)).mean_loss.value,
        observed(summary(0.0, k=1), summary(k=8)).mean_loss.value,
    )
    assert few is not None
    assert many is not None
    assert 0.0 < few < 0.5 < many < 1.0


def test_a_loss_that_grows_again_does_not_lower_the_floor() -> None:
    floor = observed(*[summary(1.0)] * 5)
    before = floor.estimate()
    for _ in range(5):
        floor.observe(summary(50.0))
    assert floor.estimate() == before


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_as_good_as_none(bad: float) -> None:
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"loss": bad}, {"loss": None}),
        ({"learning_rate": bad}, {"learning_rate": None}),
        ({"moments": GradientMoments(bad, variance=8.0)}, {"moments": None}),
        ({"variance": bad}, {"moments": None}),
    ]
    for told, instead in pairs:
        assert observed(summary(), summary(**told)) == observed(summary(), summary(**instead))


def test_impossible_numbers_are_as_good_as_none() -> None:
    impossible: list[dict[str, Any]] = [{"learning_rate": -0.5}, {"variance": -1.0}]
    for fields in impossible:
        assert observed(summary(), summary(**fields)).estimate() == pytest.approx(1.0)


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_that_are_too_large_to_be_added_are_left_out(sign: int) -> None:
    floor = observed(summary(sign * 1e308), summary(variance=1e308), summary(), *[summary(sign * 1e308)] * 20)
    assert decode(encode(floor), NoiseFloor) == floor
    assert floor.mean_loss.value is not None
    assert math.isfinite(floor.mean_loss.value)


def test_iterations_that_do_not_tell_the_variance_are_counted() -> None:
    floor = observed(summary(), summary(k=1), summary(k=1, moments=None), summary(variance=math.nan))
    assert floor.without_variance == 3
    floor.observe(summary(k=1, moments=GradientMoments(1.0, within_worker_variance=1.0, degrees_of_freedom=1)))
    assert floor.without_variance == 0


def test_where_the_loss_has_stalled_caution_grows() -> None:
    floor = NoiseFloor()
    assert floor.caution == 1.0
    assert stalled(floor) > PATIENCE
    assert floor.caution == CAUTION
    assert stalled(floor) > PATIENCE
    assert floor.caution == CAUTION**2


def test_the_longer_the_training_the_longer_is_a_stall() -> None:
    iterations = int(10 * PATIENCE / RELATIVE_PATIENCE)
    floor = observed(*(summary(FALLING**i) for i in range(iterations)))
    assert floor.caution == 1.0
    assert stalled(floor, loss=FALLING**iterations) > RELATIVE_PATIENCE * iterations


def test_caution_has_bounds() -> None:
    floor = NoiseFloor()
    while floor.caution < MOST_CAUTIOUS:
        stalled(floor)
    for _ in range(100 * PATIENCE):
        floor.observe(summary())
    assert floor.caution == MOST_CAUTIOUS


def test_progress_relieves_caution_but_not_below_what_it_was() -> None:
    floor = NoiseFloor()
    stalled(floor)
    caution, loss = floor.caution, 1.0
    while caution > 1.0:
        loss *= FALLING / 100  # much, so that the mean improves as well
        floor.observe(summary(loss))
        caution = max(caution / RELIEF, 1.0)
        assert floor.caution == pytest.approx(caution)
    floor.observe(summary(loss * FALLING / 100))
    assert floor.caution == 1.0


def test_noise_is_no_progress() -> None:
    floor, iterations = NoiseFloor(), 0
    while floor.caution == 1.0:
        floor.observe(summary(1.0 + 0.1 * (iterations % 2) * (1 - PROGRESS)))
        iterations += 1
        assert iterations < 3 * PATIENCE


@pytest.mark.parametrize("loss", [0.0, -3.0])
def test_where_the_loss_is_not_above_zero_no_floor_is_known(loss: float) -> None:
    assert observed(summary(loss)).estimate() is None
    fallen = observed(summary(), *[summary(loss)] * 200).estimate()
    assert fallen is None or fallen > 1e6


def test_a_negative_loss_improves_relative_to_its_size() -> None:
    floor = NoiseFloor()
    for i in range(3 * PATIENCE):
        floor.observe(summary(-1.0 / PROGRESS ** (2 * i)))
    assert floor.caution == 1.0
    assert stalled(NoiseFloor(), loss=-1.0) == stalled(NoiseFloor())


numbers = st.none() | st.floats()
summaries = st.builds(
    IterationSummary,
    iteration=st.just(0),
    k=st.integers(1, 20),
    duration_seconds=st.just(1.0),
    loss=numbers,
    learning_rate=numbers,
    moments=st.none()
    | st.builds(GradientMoments, st.floats(), numbers, numbers, numbers, degrees_of_freedom=st.integers(0, 2**32)),
)


@given(st.lists(summaries, max_size=9), summaries)
def test_its_fields_are_its_state(before: list[IterationSummary], after: IterationSummary) -> None:
    floor = observed(*before)
    copy = decode(encode(floor), NoiseFloor)
    assert copy == floor
    for each in (floor, copy):
        each.observe(after)
    assert copy == floor
    mine, other = floor.estimate(), copy.estimate()
    assert mine == other or (mine is not None and other is not None and math.isnan(mine) and math.isnan(other))
