"""Shadows of a cluster against one that is simulated event by event."""

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbw_controller.core.estimators.round_trips import REMEMBERED, RoundTrips, remember
from dbw_controller.core.estimators.shadows import FADING, SHADOWS, Shadows, replay_kernel, shadowed, smallest
from dbw_controller.core.kernels import Array
from tests.timelines import Timeline


def round_trips(workers: Sequence[Sequence[float]]) -> RoundTrips:
    """What is known of workers that have made these round trips, which may differ as they like."""
    trips = RoundTrips.unknown(len(workers))
    for worker, seconds in enumerate(workers):
        trips.seconds[worker * REMEMBERED :][: len(seconds)] = seconds
        trips.filled[worker] = len(seconds)
    return trips


def durations(workers: Sequence[Sequence[float]], replays: int = 1) -> Array:
    """The mean duration of every k that has a shadow."""
    shadows, trips = Shadows.new(len(workers)), round_trips(workers)
    for _ in range(replays):
        replay_kernel()(shadows, trips)
    return shadows.mean / shadows.weight


def simulated(workers: Sequence[Sequence[float]], k: int, iterations: int) -> list[float]:
    """How long iterations last where k gradients are waited for, and workers finish what they have begun."""
    made = [0] * len(workers)  # gradients that each has begun
    # When it is done, −version, the worker: of what is done in one instant, the newest version comes first.
    computing: list[tuple[float, int, int]] = []
    idle, now = list(range(len(workers))), 0.0
    lasted = []

    def begin(worker: int, version: int) -> None:
        seconds = workers[worker][made[worker] % len(workers[worker])]
        made[worker] += 1
        heappush(computing, (now + seconds, -version, worker))

    for version in range(iterations):
        published, used = now, 0
        for worker in idle:
            begin(worker, version)
        idle = []
        while used < k:
            now, its, worker = heappop(computing)
            if -its == version:
                used += 1
                idle.append(worker)
            else:
                begin(worker, version)
        lasted.append(now - published)
        while computing and computing[0][0] <= now:  # in the same instant, but too late
            idle.append(heappop(computing)[2])
    return lasted


def fading(values: Sequence[float]) -> float:
    """A sum in which old values count less and less."""
    return sum(value * FADING**age for age, value in enumerate(reversed(values)))


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=50), st.data())
def test_the_kth_smallest_is_the_one_in_the_kth_place(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    column = np.array(values)
    assert smallest(column, k) == sorted(values)[k - 1]
    assert sorted(column.tolist()) == sorted(values)


@given(st.lists(st.sampled_from([1.0, 2.0]), min_size=1, max_size=40))
def test_equal_values_do_no_harm(values: list[float]) -> None:
    assert [smallest(np.array(values), k + 1) for k in range(len(values))] == sorted(values)


@pytest.mark.parametrize("workers", [1, 2, SHADOWS, SHADOWS + 1, 100, 1000, 10_000])
def test_every_k_has_a_shadow_or_one_near_it_that_has(workers: int) -> None:
    k = shadowed(workers)
    assert (k[0], k[-1]) == (1, workers)
    assert k == sorted(set(k))
    assert len(k) == workers if workers <= SHADOWS else len(k) <= SHADOWS
    assert max(later / earlier for earlier, later in zip([1, *k], k, strict=False)) <= 2.0


@given(st.integers(1, 40), st.floats(0, 1e6))
def test_where_all_round_trips_are_equal_every_k_lasts_that_long(workers: int, seconds: float) -> None:
    shadows = Shadows.new(workers)
    for _ in range(3):
        replay_kernel()(shadows, round_trips([[seconds]] * workers))
    assert shadows.mean / shadows.weight == pytest.approx(seconds)
    assert shadows.square / shadows.weight == pytest.approx(seconds**2)


def test_without_all_workers_nobody_waits_for_the_slowest() -> None:
    assert durations([[1.0], [1.0], [1.0], [7.0]]) == pytest.approx([1.0, 1.0, 1.0, 7.0])


def assert_as_simulated(trips: list[list[float]]) -> None:
    """Shadows go on from replay to replay as clusters do that never stop."""
    shadows, known = Shadows.new(len(trips)), round_trips(trips)
    for _ in range(3):
        replay_kernel()(shadows, known)
    iterations = next(n for n in range(1, 1000) if fading([1.0] * n) >= 0.999999 * shadows.weight[0])
    for k, mean, square, weight in zip(shadows.k, shadows.mean, shadows.square, shadows.weight, strict=True):
        expected = simulated(trips, k, iterations)
        assert mean == pytest.approx(fading(expected))
        assert square == pytest.approx(fading([seconds**2 for seconds in expected]))
        assert weight == pytest.approx(fading([1.0] * iterations))


@given(st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=REMEMBERED), min_size=1, max_size=6))
@settings(max_examples=200)
def test_shadows_do_what_a_cluster_does_that_waits_for_as_many(workers: list[list[int]]) -> None:
    """Whole seconds, so that sums are exact: then it is clear what happens in the same instant."""
    assert_as_simulated([[float(seconds) for seconds in worker] for worker in workers])


@pytest.mark.parametrize("delay", ["exp:1", "uniform:0,1", "pareto:3,1", "exp:1 * factors:1,1,7"])
def test_of_any_distribution_durations_are_those_of_a_cluster(delay: str) -> None:
    timeline = Timeline(16, delay)
    assert_as_simulated(
        [[timeline.round_trip(worker, version) for version in range(REMEMBERED)] for worker in range(16)]
    )


def test_all_of_exponential_workers_take_as_long_as_is_known() -> None:
    random = np.random.default_rng(11)
    means = [durations(random.standard_exponential((16, REMEMBERED)).tolist())[-1] for _ in range(100)]
    assert np.mean(means) == pytest.approx(sum(1 / i for i in range(1, 17)), rel=0.05)


def test_slow_workers_are_not_waited_for_unless_there_are_too_few_others() -> None:
    random = np.random.default_rng(13)
    fast, slow = random.uniform(0.8, 1.2, (12, REMEMBERED)), random.uniform(3.2, 4.8, (4, REMEMBERED))
    alone, together = durations(fast.tolist(), 20), durations([*slow.tolist(), *fast.tolist()], 20)
    assert together[:12] == pytest.approx(alone, rel=0.05)
    assert together[12] > 2 * together[11]


def test_new_round_trips_are_soon_all_that_counts() -> None:
    shadows = Shadows.new(4)
    for seconds in (100.0, 1.0):
        for _ in range(100):
            replay_kernel()(shadows, round_trips([[seconds]] * 4))
    assert shadows.mean / shadows.weight == pytest.approx(1.0, rel=0.01)


def test_round_trips_that_come_in_are_replayed() -> None:
    trips, shadows = round_trips([[1.0], [1.0]]), Shadows.new(2)
    replay_kernel()(shadows, trips)
    for _ in range(REMEMBERED):
        remember(trips, 1, 3.0)
    for _ in range(100):
        replay_kernel()(shadows, trips)
    assert shadows.mean / shadows.weight == pytest.approx([1.0, 3.0], rel=0.01)
