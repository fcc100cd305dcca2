"""Round trips of workers that finish what they have begun, and durations that follow from them."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import cycle, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from dbw_controller.core.errors import StateDamagedError, damaged_state
from dbw_controller.core.estimators.finished_trips import FinishedTrips
from dbw_controller.core.estimators.roster import Roster
from dbw_controller.core.estimators.round_trips import REMEMBERED
from dbw_controller.core.estimators.shadows import SHADOWS, shadowed
from dbw_controller.core.kernels import Array
from dbw_controller.core.reports import MAX_SECONDS, Arrivals, IterationSummary, Membership
from dbw_controller.core.state import pack, unpack
from tests.states import Change, changed, raw
from tests.timelines import Timeline, times

USUAL = "uniform:1,1.9"  # none is unusually short or long

Told = tuple[IterationSummary, list[Arrivals]]


def recovered(trips: FinishedTrips) -> list[list[float]]:
    """The round trips that are remembered of each worker, in some order."""
    state = trips.snapshot()
    seconds = unpack(state.seconds).reshape(-1, REMEMBERED)
    return [sorted(row[: int(n)].tolist()) for row, n in zip(seconds, unpack(state.filled), strict=True)]


def seconds(trips: FinishedTrips) -> Array:
    forecast = trips.forecast()
    assert forecast is not None
    return forecast.seconds


def learn(trips: FinishedTrips, told: Sequence[Told], live: Sequence[int]) -> None:
    for ended, arrivals in told:
        trips.ended(ended, arrivals, live)


def after(timeline: Timeline, ks: Sequence[int]) -> FinishedTrips:
    """What is learnt from the first iterations of a cluster."""
    trips = FinishedTrips()
    learn(trips, [timeline.iterate(k) for k in ks], timeline.live)
    return trips


def arrived(timeline: Timeline, told: Sequence[Told], live: Sequence[int]) -> list[list[float]]:
    """How long workers really took for the last gradients that have arrived, in some order."""
    made: dict[int, list[float]] = {worker: [] for worker in live}
    for _, batches in told:
        for batch in sorted(batches, key=lambda batch: batch.iteration):
            for worker in batch.workers if batch.workers is not None else ():
                made[worker].append(timeline.round_trip(worker, batch.iteration))
    return [sorted(made[worker][-REMEMBERED:]) for worker in live]


def known(trips: FinishedTrips, expected: list[list[float]]) -> None:
    """What is remembered is what is expected; workers that were never heard of have a guess."""
    for mine, other in zip(recovered(trips), expected, strict=True):
        assert mine == pytest.approx(other) if other else len(mine) == 1


@st.composite
def trainings(draw: st.DrawFn) -> tuple[int, list[int], int]:
    """How many workers, which k's and a seed."""
    workers = draw(st.integers(1, 6))
    return workers, draw(st.lists(st.integers(1, workers), min_size=1, max_size=40)), draw(st.integers(0, 2**32))


@given(trainings(), st.booleans())
def test_round_trips_are_recovered_from_arrivals(training: tuple[int, list[int], int], told_when: bool) -> None:
    """It need not be told when parameters are published, if that is when the iteration before ends."""
    workers, ks, seed = training
    timeline, trips = Timeline(workers, USUAL, seed), FinishedTrips()
    told = [timeline.iterate(k) for k in ks]
    for ended, arrivals in told:
        trips.ended(ended if told_when else replace(ended, published_seconds=None), arrivals, timeline.live)
    known(trips, arrived(timeline, told, timeline.live))


@given(trainings())
def test_workers_that_are_heard_of_one_after_the_other_are_known_as_well(training: tuple[int, list[int], int]) -> None:
    """Where only the number of workers is told, those that are late for the first iteration are not known there."""
    workers, ks, seed = training
    timeline, trips, roster = Timeline(workers, USUAL, seed), FinishedTrips(), Roster()
    told = [timeline.iterate(k) for k in ks]
    for ended, arrivals in told:
        trips.ended(ended, arrivals, roster.update(Membership(workers), arrivals))
    heard = [made for made in arrived(timeline, told, timeline.live) if made]
    assert recovered(trips)[: len(heard)] == [pytest.approx(made) for made in heard]


@given(trainings())
def test_pauses_between_iterations_are_no_part_of_round_trips(training: tuple[int, list[int], int]) -> None:
    """All are waited for, so that nobody computes meanwhile."""
    workers, ks, seed = training
    timeline, trips = Timeline(workers, USUAL, seed), FinishedTrips()
    told = [timeline.iterate(workers) for _ in ks]
    for pause, (ended, arrivals) in enumerate(told):
        assert ended.published_seconds is not None
        trips.ended(replace(ended, published_seconds=ended.published_seconds + 100.0 * pause), arrivals, timeline.live)
    known(trips, arrived(timeline, told, timeline.live))


def test_workers_that_are_always_late_are_known_as_well() -> None:
    trips = after(Timeline(3, "constant:1 * factors:1,2.25,4.125"), [1] * 50)
    assert [set(row) for row in recovered(trips)] == [{1.0}, {2.25}, {4.125}]
    assert seconds(trips)[0] == pytest.approx(1.0)
    assert seconds(trips)[2] == pytest.approx(4.125, rel=0.05)


@given(trainings())
def test_what_is_told_again_changes_nothing(training: tuple[int, list[int], int]) -> None:
    workers, ks, seed = training
    timeline, once, again = Timeline(workers, USUAL, seed), FinishedTrips(), FinishedTrips()
    before: list[Arrivals] = []
    for ended, arrivals in (timeline.iterate(k) for k in ks):
        once.ended(ended, arrivals, timeline.live)
        again.ended(ended, [*arrivals, *before, *arrivals], timeline.live)
        before = arrivals
    assert once.snapshot() == again.snapshot()


def test_arrivals_of_strangers_and_of_unknown_iterations_change_nothing() -> None:
    timeline = Timeline(3, USUAL)
    told = [timeline.iterate(2) for _ in range(12)]
    plainly, disturbed = FinishedTrips(), FinishedTrips()
    strange = [Arrivals(3, np.array([9.0]), workers=[77]), Arrivals(999, np.array([9.0]), workers=[0])]
    strange.append(Arrivals(4, np.array([9.0]), workers=None))
    learn(plainly, told, timeline.live)
    learn(disturbed, [(ended, [*arrivals, *strange]) for ended, arrivals in told], timeline.live)
    assert plainly.snapshot() == disturbed.snapshot()


def moved(told: Sequence[Told], iterations: int, by: float) -> list[Told]:
    """The same iterations with other numbers, by another clock."""
    return [
        (
            times(ended.iteration + iterations, (ended.published_seconds or 0.0) + by, ended.duration_seconds),
            [Arrivals(b.iteration + iterations, b.seconds, b.preceding, b.workers) for b in arrivals],
        )
        for ended, arrivals in told
    ]


@pytest.mark.parametrize(
    ("iterations", "by"), [(20, -1e6), (25, 1e3), (25, -1e6)], ids=["another clock", "gap", "both"]
)
def test_a_clock_that_goes_back_or_a_gap_is_a_new_beginning_of_idle_workers(iterations: int, by: float) -> None:
    """The parameter server has begun again; what is known of its workers stays."""
    first, second, trips = Timeline(4, USUAL, 1), Timeline(4, USUAL, 2), FinishedTrips()
    earlier, later = [first.iterate(2) for _ in range(20)], [second.iterate(2) for _ in range(8)]
    learn(trips, earlier, first.live)
    learn(trips, moved(later, iterations, by), first.live)
    expected = []
    for worker, new in enumerate(arrived(second, later, second.live)):
        old = [
            first.round_trip(worker, batch.iteration)
            for _, batches in earlier
            for batch in batches
            if batch.workers is not None and worker in batch.workers
        ]
        expected.append(sorted([*old[-(REMEMBERED - len(new)) :], *new]))
    known(trips, expected)


def test_beginning_anew_forgets_only_who_is_busy() -> None:
    timeline = Timeline(4, USUAL)
    trips = after(timeline, [2] * 20)
    before, durations = recovered(trips), seconds(trips).tolist()
    trips.reset()
    assert (recovered(trips), seconds(trips).tolist()) == (before, durations)
    again = Timeline(4, USUAL)
    learn(trips, [again.iterate(4) for _ in range(REMEMBERED)], again.live)  # from iteration 0 on
    assert recovered(trips) == [
        pytest.approx(sorted(again.round_trip(worker, version) for version in range(REMEMBERED))) for worker in range(4)
    ]


@pytest.mark.parametrize("published", [math.nan, math.inf, -math.inf, 1e300])
def test_a_clock_that_tells_nonsense_is_not_believed(published: float) -> None:
    timeline, told, untold = Timeline(3, USUAL), FinishedTrips(), FinishedTrips()
    for ended, arrivals in (timeline.iterate(2) for _ in range(10)):
        told.ended(replace(ended, published_seconds=published), arrivals, timeline.live)
        untold.ended(replace(ended, published_seconds=None), arrivals, timeline.live)
    assert told.snapshot() == untold.snapshot()


def test_a_clock_that_jumps_ahead_makes_no_round_trip_that_cannot_be() -> None:
    timeline, trips = Timeline(2, USUAL), FinishedTrips()
    for jump, (ended, arrivals) in enumerate(timeline.iterate(1) for _ in range(9)):
        assert ended.published_seconds is not None
        trips.ended(
            replace(ended, published_seconds=ended.published_seconds + 0.9 * MAX_SECONDS * (jump % 2)),
            arrivals,
            timeline.live,
        )
    FinishedTrips().restore(raw(trips.snapshot()))
    assert max(map(max, recovered(trips))) <= MAX_SECONDS


def test_a_worker_that_stalls_is_noticed_before_it_arrives() -> None:
    timeline, trips = Timeline(4, "constant:1 * slowdown:1000000,from=10,workers=3"), FinishedTrips()
    while timeline.now < 10.0:
        trips.ended(*timeline.iterate(4), timeline.live)
    assert seconds(trips) == pytest.approx([1.0] * 4)
    for stalled in range(1, 30):
        trips.ended(*timeline.iterate(3), timeline.live)
        assert seconds(trips)[:3] == pytest.approx([1.0] * 3)
        if stalled > 5:
            assert seconds(trips)[3] > 0.5 * stalled


def test_workers_that_come_are_taken_to_be_like_the_others_until_they_are_known() -> None:
    trips = after(Timeline(3, "constant:2"), [3] * 5)
    larger = Timeline(5, "constant:2 * factors:1,1,1,1,4")
    told = moved([larger.iterate(3) for _ in range(40)], 5, 10.0)
    learn(trips, told[:1], larger.live)
    assert seconds(trips) == pytest.approx([2.0] * 5)
    learn(trips, told[1:], larger.live)
    assert seconds(trips) == pytest.approx([2.0, 2.0, 2.0, 2.0, 8.0], rel=0.05)


def test_workers_that_leave_are_forgotten_and_those_that_stay_are_not() -> None:
    timeline = Timeline(4, "constant:1 * factors:1,2.25,4.125,8")
    trips = after(timeline, [4] * 3)
    trips.ended(times(3, None, 1.0), [], [2, 0, 77])  # in another order, with one that is new
    assert recovered(trips) == [[4.125] * 3, [1.0] * 3, [(4.125 + 1.0) / 2]]
    trips.ended(times(4, None, 1.0), [], (2,))
    assert recovered(trips) == [[4.125] * 3]
    assert seconds(trips) == pytest.approx([4.125])


def test_nothing_is_known_before_anybody_has_arrived() -> None:
    trips = FinishedTrips()
    assert trips.forecast() is None
    trips.ended(times(0, 0.0, 5.0), [], (0, 1, 2))
    assert trips.forecast() is None
    trips.ended(times(1, None, 1.0), [Arrivals(1, np.array([1.0]), workers=[1])], (0, 1, 2))
    assert len(seconds(trips)) == 3


def test_of_many_workers_all_durations_are_known_though_not_every_k_has_a_shadow() -> None:
    workers = 100
    assert len(shadowed(workers)) <= SHADOWS < workers
    durations = seconds(after(Timeline(workers, "shifted-exp:0.5,0.5"), [30] * 12))
    assert len(durations) == workers
    assert (np.diff(durations) >= 0).all()


SLOW = "factors:4,4,4,4,1,1,1,1,1,1,1,1,1,1,1,1"


@cache
def real(delay: str, k: int) -> float:
    """How long iterations of 16 workers last."""
    timeline = Timeline(16, delay, seed=1)
    return sum(timeline.iterate(k)[0].duration_seconds for _ in range(400)) / 400


@pytest.mark.parametrize("observed", [1, 4, 16])
@pytest.mark.parametrize(
    ("delay", "tolerance"), [("shifted-exp:0.5,0.5", 0.15), (f"uniform:0.8,1.2 * {SLOW}", 0.1), ("exp:1", 0.35)]
)
def test_durations_of_all_k_are_known_whichever_is_waited_for(delay: str, tolerance: float, observed: int) -> None:
    ks = [1, 4, 8, 12, 16]
    timeline, trips, forecasts = Timeline(16, delay), FinishedTrips(), []
    for _ in range(200):
        trips.ended(*timeline.iterate(observed), timeline.live)
        forecasts.append(seconds(trips)[[k - 1 for k in ks]])
    assert np.mean(forecasts[40:], axis=0) == pytest.approx([real(delay, k) for k in ks], rel=tolerance)


def test_slow_workers_do_not_make_those_slow_that_need_not_wait_for_them() -> None:
    alike = seconds(after(Timeline(16, "uniform:0.8,1.2"), [16] * 30))
    different = seconds(after(Timeline(16, f"uniform:0.8,1.2 * {SLOW}"), [16] * 30))
    assert different[:12] == pytest.approx(alike[:12], rel=0.25)
    assert different[12] > 2 * different[11]
    assert different[15] == pytest.approx(4 * alike[15], rel=0.25)


@pytest.mark.parametrize("ks", [(1,), (4,), (8,), (16,), (4, 8, 12)], ids=str)
def test_a_slowdown_of_half_the_workers_and_its_end_are_known_within_ten_iterations(ks: tuple[int, ...]) -> None:
    start, end = 30.0, 150.0
    timeline = Timeline(16, f"constant:1 * slowdown:5,from={start},until={end},workers=0-7")
    trips, choice, since = FinishedTrips(), cycle(ks), {False: 0, True: 0}
    while timeline.now < 200.0:
        slow = start <= timeline.now < end
        since = {slow: since[slow] + 1, not slow: 0}
        trips.ended(*timeline.iterate(next(choice)), timeline.live)
        if since[slow] > 10:
            durations = seconds(trips)
            assert durations[15] / durations[7] == pytest.approx(5.0 if slow else 1.0, rel=0.2)


@given(trainings(), st.integers(0, 40))
def test_a_snapshot_holds_all_round_trips(training: tuple[int, list[int], int], cut: int) -> None:
    workers, ks, seed = training
    timeline, trips, copy = Timeline(workers, USUAL, seed), FinishedTrips(), FinishedTrips()
    told = [timeline.iterate(k) for k in ks]
    learn(trips, told[:cut], timeline.live)
    copy.restore(raw(trips.snapshot()))
    assert copy.snapshot() == trips.snapshot()
    for each in (trips, copy):
        learn(each, told[cut:], timeline.live)
    assert copy.snapshot() == trips.snapshot()


def test_durations_after_a_restart_are_what_they_were() -> None:
    timeline = Timeline(16, "shifted-exp:0.5,0.5")
    trips, copy = after(timeline, list(islice(cycle((2, 8, 16)), 40))), FinishedTrips()
    copy.restore(raw(trips.snapshot()))
    assert seconds(copy) == pytest.approx(seconds(trips), rel=0.15)
    told = [timeline.iterate(8) for _ in range(20)]
    for each in (trips, copy):
        learn(each, told, timeline.live)
    assert seconds(copy) == pytest.approx(seconds(trips), rel=0.15)


def packed(*numbers: float) -> bytes:
    return pack(np.array(numbers))


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("seconds"),
        lambda state: state.pop("published"),
        lambda state: state.update(filled=b""),
        lambda state: state.update(filled=b"123"),
        lambda state: state.update(filled=packed(1, 1, REMEMBERED + 1)),
        lambda state: state.update(filled=packed(1, -1, 1)),
        lambda state: state.update(next=packed(0, 0, REMEMBERED)),
        lambda state: state.update(version=packed(0, 0)),
        lambda state: state.update(seconds=packed(*[math.nan] * 3 * REMEMBERED)),
        lambda state: state.update(seconds=packed(*[2 * MAX_SECONDS] * 3 * REMEMBERED)),
        lambda state: state.update(live=["0", 1, 2]),
        lambda state: state.update(live=[0, 1, 2, 3]),
        lambda state: state.update(live=7),
        lambda state: state.update(published=[[-1, 0.0]]),
        lambda state: state.update(published=[[0, math.inf]]),
        lambda state: state.update(now=None),
    ],
)
def test_a_damaged_state_is_refused(change: Change) -> None:
    state = changed(after(Timeline(3, USUAL), [3, 2, 1]).snapshot(), change)
    with pytest.raises(StateDamagedError), damaged_state():
        FinishedTrips().restore(Raw(state))
