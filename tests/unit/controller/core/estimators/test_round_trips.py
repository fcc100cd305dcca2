"""What is remembered of the times that each worker took, and what is guessed meanwhile."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_controller.core.estimators import round_trips
from dbw_controller.core.estimators.round_trips import LASTING, REMEMBERED, UNUSUAL, RoundTrips
from dbw_controller.core.reports import MAX_SECONDS

NEVER = math.nan
USUAL = [1.0, 1.1, 0.9, 1.2]


def of(trips: RoundTrips, worker: int = 0) -> list[float]:
    """The round trips that are remembered, in some order."""
    first = worker * REMEMBERED
    return sorted(trips.seconds[first : first + trips.filled.item(worker)].tolist())


def remembered(*seconds: float, workers: int = 1) -> RoundTrips:
    """What is known after the first worker has made these round trips."""
    trips = RoundTrips.unknown(workers)
    for time in seconds:
        round_trips.remember(trips, 0, time)
    return trips


def arrive(trips: RoundTrips, finished: list[float], version: int, following: float, first: int = 0) -> None:
    """The workers from the first one on finish at these times what was published at 0."""
    workers = np.arange(first, first + len(finished))
    round_trips.kernels().arrive(trips, workers, np.array(finished), version, 0.0, following)


def begun_at(workers: int, time: float) -> RoundTrips:
    """Workers that were heard of before, and have begun with something else then."""
    trips = RoundTrips.unknown(workers)
    trips.version[:], trips.begun[:] = 0, time
    return trips


@given(st.lists(st.floats(1.0, 0.99 * UNUSUAL), max_size=3 * REMEMBERED))
def test_the_last_round_trips_are_remembered(seconds: list[float]) -> None:
    assert of(remembered(*seconds)) == sorted(seconds[-REMEMBERED:])


@pytest.mark.parametrize("unusual", [10.0, 0.01])
def test_unusual_ones_replace_all_that_was_before_when_they_last(unusual: float) -> None:
    for before in (USUAL, USUAL * REMEMBERED):
        trips = remembered(*before)
        for _ in range(LASTING - 1):
            assert not round_trips.remember(trips, 0, unusual)
            assert len(set(of(trips))) > 1
        assert round_trips.remember(trips, 0, unusual)
        assert set(of(trips)) == {unusual}
        assert not round_trips.remember(trips, 0, unusual)


@pytest.mark.parametrize("other", [1.0, 0.01])
def test_unusual_ones_that_do_not_last_replace_nothing(other: float) -> None:
    trips = remembered(*USUAL, *[10.0] * (LASTING - 1), other, 10.0)
    assert set(USUAL) & set(of(trips))
    assert 10.0 in of(trips)


def test_what_is_usual_is_not_known_at_once() -> None:
    growing = [10.0**i for i in range(LASTING)]
    assert of(remembered(*growing)) == growing


@pytest.mark.parametrize("factor", [10.0, 1.1, 0.9, 0.1])
def test_a_change_that_lasts_is_soon_all_that_is_remembered(factor: float) -> None:
    trips = remembered(*[1.0] * REMEMBERED, *[factor] * (REMEMBERED + LASTING))
    assert of(trips) == [factor] * REMEMBERED


def test_a_worker_that_waits_begins_when_parameters_are_published_and_a_late_one_at_once() -> None:
    trips = begun_at(3, 100.0)
    arrive(trips, [101.0, 102.0, 105.0], version=1, following=102.0)
    assert [of(trips, worker) for worker in range(3)] == [[1.0], [2.0], [5.0]]
    assert trips.begun.tolist() == [102.0, 102.0, 105.0]


def test_a_worker_that_was_not_heard_of_before_has_begun_when_its_parameters_were_published() -> None:
    trips = RoundTrips.unknown(1)
    trips.begun[0] = 4.0
    arrive(trips, [5.0], version=0, following=4.0)
    assert (of(trips), trips.begun.tolist()) == ([5.0], [5.0])


def test_a_worker_is_idle_until_the_next_parameters_are_published() -> None:
    trips = begun_at(1, 0.0)
    arrive(trips, [1.0], version=1, following=NEVER)
    assert np.isnan(trips.begun).all()


def test_what_was_told_before_and_older_versions_change_nothing() -> None:
    trips = begun_at(1, 0.0)
    arrive(trips, [1.0], version=5, following=1.0)
    arrive(trips, [9.0], version=5, following=9.0)
    arrive(trips, [9.0], version=4, following=9.0)
    assert (of(trips), trips.begun.tolist()) == ([1.0], [1.0])


def test_unknown_workers_change_nothing() -> None:
    trips = begun_at(2, 0.0)
    arrive(trips, [1.0], version=1, following=1.0, first=-1)
    assert trips.filled.tolist() == [0, 0]


def test_no_round_trip_is_negative_or_too_long_to_be_one() -> None:
    trips = begun_at(2, 10.0)
    arrive(trips, [9.0, 1e300], version=1, following=NEVER)
    assert (of(trips, 0), of(trips, 1)) == ([0.0], [MAX_SECONDS])


def guess(trips: RoundTrips, now: float) -> int:
    return round_trips.kernels().guess(trips, now)


def test_where_nothing_is_known_nothing_is_guessed() -> None:
    trips = begun_at(3, 0.0)
    assert guess(trips, now=9.0) == -1
    assert trips.filled.tolist() == [0, 0, 0]


def test_workers_that_have_just_come_are_taken_to_be_like_the_others() -> None:
    trips = remembered(1.0, 3.0, workers=3)
    round_trips.remember(trips, 1, 5.0)
    assert guess(trips, now=0.0) == 1
    assert of(trips, 2) == [4.0]  # the mean of the longest ones
    assert guess(trips, now=0.0) == 0
    round_trips.remember(trips, 2, 7.0)
    assert of(trips, 2) == [7.0]


def test_a_worker_that_has_stalled_is_taken_to_need_as_long_as_it_has_been_computing() -> None:
    trips = remembered(*USUAL)
    trips.begun[0] = 100.0
    longest = max(USUAL)
    assert guess(trips, now=100.0 + 0.99 * UNUSUAL * longest) == 0
    assert of(trips) == sorted(USUAL)
    for elapsed, anew in ((1.01 * UNUSUAL * longest, 1), (3.0 * UNUSUAL * longest, 0), (3.01 * UNUSUAL * longest, 0)):
        assert guess(trips, now=100.0 + elapsed) == anew
        assert of(trips) == pytest.approx([elapsed])


def test_what_a_stalled_worker_needed_at_last_is_remembered_and_its_guess_is_not() -> None:
    trips = remembered(*USUAL)
    trips.begun[0] = 0.0
    guess(trips, now=50.0)
    arrive(trips, [60.0], version=0, following=60.0)
    arrive(trips, [61.0], version=1, following=61.0)
    assert of(trips) == [1.0, 60.0]


def test_an_idle_worker_has_not_stalled() -> None:
    trips = remembered(*USUAL)
    assert guess(trips, now=1e9) == 0
    assert of(trips) == sorted(USUAL)
