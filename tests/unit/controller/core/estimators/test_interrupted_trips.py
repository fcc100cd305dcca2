"""Durations where workers are interrupted, so that only the first ones are seen."""

import math
from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from dbw_controller.core.errors import StateDamagedError, damaged_state
from dbw_controller.core.estimators.interrupted_trips import COLUMNS, MISSES, RETRY_EVERY, InterruptedTrips
from dbw_controller.core.kernels import Array
from dbw_controller.core.reports import MAX_SECONDS, Arrivals, EndCause
from dbw_controller.core.spec import SyncMode
from dbw_controller.core.state import pack
from dbw_worker.delays import parse_delay
from tests.states import Change, changed, raw
from tests.timelines import Timeline, times

WORKERS = 16


def interrupted(delay: str, workers: int = WORKERS, seed: int = 0) -> Timeline:
    return Timeline(workers, delay, seed, SyncMode.PUSH_INTERRUPT)


def seconds(trips: InterruptedTrips) -> Array:
    forecast = trips.forecast()
    assert forecast is not None
    return forecast.seconds


def average(delay: str, k: int, iterations: int = 300) -> Array:
    """The mean forecast while k arrivals are seen."""
    timeline, trips, forecasts = interrupted(delay), InterruptedTrips(), []
    for _ in range(iterations):
        trips.ended(*timeline.iterate(k), timeline.live)
        forecasts.append(seconds(trips))
    mean: Array = np.mean(forecasts[60:], axis=0)
    return mean


def order_statistics(delay: str) -> Array:
    """How long it takes until the k-th of all workers arrives, for every k."""
    parsed, random = parse_delay(delay), np.random.default_rng(3)
    draws = [[parsed.seconds(worker, 0, 0.0, random) for worker in range(WORKERS)] for _ in range(4000)]
    mean: Array = np.sort(draws, axis=1).mean(axis=0)
    return mean


def test_order_statistics_are_those_that_are_known() -> None:
    known = [sum(1 / i for i in range(WORKERS - k + 1, WORKERS + 1)) for k in range(1, WORKERS + 1)]
    assert order_statistics("exp:1") == pytest.approx(known, rel=0.05)


@pytest.mark.parametrize("delay", ["exp:1", "shifted-exp:0.5,0.5"])
@pytest.mark.parametrize("k", [4, 8, 16])
def test_durations_of_all_k_are_known_though_the_last_workers_are_never_seen(delay: str, k: int) -> None:
    found, expected = average(delay, k), order_statistics(delay)
    assert found == pytest.approx(expected, rel=0.35)
    assert found[: WORKERS - 4] == pytest.approx(expected[: WORKERS - 4], rel=0.2)


@pytest.mark.parametrize(("k", "tolerance"), [(4, 0.4), (8, 0.25), (16, 0.2)])
def test_workers_may_differ(k: int, tolerance: float) -> None:
    delay = "exp:1 * factors:4,4,4,4,1,1,1,1,1,1,1,1,1,1,1,1"
    assert average(delay, k) == pytest.approx(order_statistics(delay), rel=tolerance)


def test_what_is_seen_is_known() -> None:
    """The first k arrivals are not estimated, but measured."""
    found, expected = average("uniform:1,2", k=8), order_statistics("uniform:1,2")
    assert found[:8] == pytest.approx(expected[:8], rel=0.03)
    assert (np.diff(found) >= 0).all()


def test_all_that_take_equally_long_are_expected_when_the_first_one_arrives() -> None:
    timeline, trips = interrupted("constant:3"), InterruptedTrips()
    for _ in range(10):
        trips.ended(*timeline.iterate(4), timeline.live)
    forecast = trips.forecast()
    assert forecast is not None
    assert forecast.seconds == pytest.approx([3.0] * WORKERS)
    assert forecast.deviation == pytest.approx([0.0] * WORKERS, abs=1e-6)


@pytest.mark.parametrize("deadline", [1.5, 2.0, 4.0])
def test_workers_that_a_deadline_cuts_off_do_not_look_fast(deadline: float) -> None:
    timeline, trips = interrupted("constant:1 * slowdown:10,workers=3", workers=4), InterruptedTrips()
    for _ in range(60):
        trips.ended(*timeline.iterate(4, deadline), timeline.live)
    assert seconds(trips)[:3] == pytest.approx([1.0] * 3)
    assert seconds(trips)[3] > 2 * deadline


def test_a_deadline_at_which_only_the_first_one_is_there_makes_nobody_look_fast() -> None:
    timeline, trips = interrupted("constant:1 * factors:1,2,2,2", workers=4), InterruptedTrips()
    for _ in range(60):
        trips.ended(*timeline.iterate(4, 1.5), timeline.live)
    assert seconds(trips)[0] == pytest.approx(1.0)
    assert (seconds(trips)[1:] >= 1.5).all()


def slowdown(ks: Sequence[int], check: Callable[[bool, float], None], settled: int = 40) -> None:
    """Half the workers are five times slower for a while; checks T_16 / T_8 when it should be known."""
    start, end = 40.0, 440.0
    timeline = interrupted(f"constant:1 * slowdown:5,from={start},until={end},workers=0-7")
    trips, choice, since = InterruptedTrips(), cycle(ks), {False: 0, True: 0}
    while timeline.now < end + 200.0:
        slow = start <= timeline.now < end
        since = {slow: since[slow] + 1, not slow: 0}
        trips.ended(*timeline.iterate(next(choice)), timeline.live)
        if since[slow] > settled:
            check(slow, seconds(trips).item(15) / seconds(trips).item(7))
    assert not slow
    assert since[slow] > settled


def test_a_slowdown_of_half_the_workers_and_its_end_are_known_within_forty_iterations() -> None:
    def check(slow: bool, ratio: float) -> None:
        assert ratio == pytest.approx(5.0 if slow else 1.0, rel=0.05)

    slowdown((16,), check)


@pytest.mark.parametrize("ks", [(4, 16), (8, 12), (4, 8, 12, 16)], ids=str)
def test_a_slowdown_is_noticed_and_its_end_is_known_where_not_all_are_seen(ks: tuple[int, ...]) -> None:
    """That a worker which takes five seconds takes just as long each time is not seen where it is interrupted."""

    def check(slow: bool, ratio: float) -> None:
        assert ratio > 4.0 if slow else ratio < 1.5

    slowdown(ks, check)


def learnt(*batches: tuple[float, list[Arrivals]], workers: int = 3) -> InterruptedTrips:
    """What is learnt from iterations: how long each lasts, and what arrives in it."""
    trips = InterruptedTrips()
    for number, (duration, arrivals) in enumerate(batches):
        trips.ended(times(number, None, duration), arrivals, range(workers))
    return trips


def arrive(iteration: int, times: Sequence[float], workers: Sequence[int]) -> Arrivals:
    return Arrivals(iteration, np.array(times), workers=workers)


def test_iterations_in_which_nobody_is_seen_tell_nothing() -> None:
    assert learnt((5.0, [])).forecast() is None
    once = learnt((2.0, [arrive(0, [1.0, 2.0], [0, 1])]))
    silent = learnt((2.0, [arrive(0, [1.0, 2.0], [0, 1])]), (9.0, []), (9.0, [Arrivals(2, np.array([1.0]))]))
    assert silent.snapshot() == once.snapshot()


def test_only_arrivals_of_the_iteration_itself_before_its_end_count() -> None:
    once = learnt((2.0, [arrive(0, [1.0, 2.0], [0, 1])]))
    others = [arrive(7, [0.1], [2]), arrive(0, [2.5], [2]), arrive(0, [0.1], [77])]
    assert learnt((2.0, [arrive(0, [1.0, 2.0], [0, 1]), *others])).snapshot() == once.snapshot()


def test_arrivals_may_be_told_in_parts_and_twice() -> None:
    once = learnt((2.0, [arrive(0, [1.0, 2.0], [0, 1])]))
    assert learnt((2.0, [arrive(0, [1.0], [0]), *[arrive(0, [2.0], [1])] * 2])).snapshot() == once.snapshot()


def test_workers_that_stay_are_known_and_others_are_forgotten() -> None:
    timeline, trips = interrupted("constant:1 * factors:1,1,9", workers=3), InterruptedTrips()
    for _ in range(30):
        trips.ended(*timeline.iterate(3), timeline.live)
    assert seconds(trips) == pytest.approx([1.0, 1.0, 9.0], rel=0.05)
    trips.ended(times(30, None, 1.0), [arrive(30, [1.0], [0])], [2, 0])  # worker 2 is not seen, and known to be slow
    assert len(seconds(trips)) == 2
    assert seconds(trips)[1] > 3.0
    trips.ended(times(31, None, 1.0), [arrive(31, [1.0], [0])], [0, 5])  # of worker 5 nothing is known
    assert seconds(trips)[1] < 3.0


def coming(trips: InterruptedTrips) -> int:
    forecast = trips.forecast()
    assert forecast is not None
    return forecast.coming


def missing(trips: InterruptedTrips, iterations: int, cause: EndCause = EndCause.DEADLINE) -> list[int]:
    """How many workers come after each iteration that ends without worker 2."""
    ended = replace(times(0, None, 2.0), end_cause=cause)
    counts = []
    for _ in range(iterations):
        trips.ended(ended, [arrive(0, [1.0, 2.0], [0, 1])], range(3))
        counts.append(coming(trips))
    return counts


def test_a_worker_that_has_missed_several_deadlines_may_hang_and_is_given_another_chance_later() -> None:
    trips = InterruptedTrips()
    assert missing(trips, RETRY_EVERY + 2) == [3] * (MISSES - 1) + [2] * (RETRY_EVERY - MISSES) + [3, 2, 2]
    trips.ended(times(0, None, 3.0), [arrive(0, [1.0, 2.0, 3.0], [0, 1, 2])], range(3))
    assert coming(trips) == 3


def test_a_worker_that_was_not_waited_for_has_missed_nothing() -> None:
    assert set(missing(InterruptedTrips(), 2 * MISSES, EndCause.K_REACHED)) == {3}


def test_a_state_of_before_knows_of_no_missed_deadlines() -> None:
    trips, copy = InterruptedTrips(), InterruptedTrips()
    missing(trips, MISSES)
    copy.restore(raw(trips.snapshot()))
    assert coming(copy) == 2
    copy.restore(Raw(changed(trips.snapshot(), lambda state: state.pop("missed"))))
    assert coming(copy) == 3


def test_a_reset_forgets_nothing() -> None:
    trips = learnt((2.0, [arrive(0, [1.0, 2.0], [0, 1])]))
    before = trips.snapshot()
    trips.reset()
    assert trips.snapshot() == before


@given(st.lists(st.tuples(st.floats(0, MAX_SECONDS), st.integers(1, 4)), min_size=1, max_size=30), st.integers(0, 30))
def test_a_snapshot_holds_everything(told: list[tuple[float, int]], cut: int) -> None:
    trips, copy = InterruptedTrips(), InterruptedTrips()
    iterations = [
        (times(number, None, duration), [arrive(number, [duration] * k, range(k))])
        for number, (duration, k) in enumerate(told)
    ]
    for ended, arrivals in iterations[:cut]:
        trips.ended(ended, arrivals, range(4))
    copy.restore(raw(trips.snapshot()))
    assert copy.snapshot() == trips.snapshot()
    for each in (trips, copy):
        for ended, arrivals in iterations[cut:]:
            each.ended(ended, arrivals, range(4))
    assert copy.snapshot() == trips.snapshot()
    assert seconds(copy).tolist() == seconds(trips).tolist()
    assert (np.diff(seconds(trips)) >= 0).all()


def packed(*numbers: float) -> bytes:
    return pack(np.array(numbers))


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("exposure"),
        lambda state: state.pop("weight"),
        lambda state: state.update(events=b"123"),
        lambda state: state.update(events=packed(1, 1)),
        lambda state: state.update(mean=packed(1, math.nan, 1)),
        lambda state: state.update(square=packed(1, -1, 1)),
        lambda state: state.update(missed=packed(1, -1, 1)),
        lambda state: state.update(live=[0, 1, 2, 3]),
        lambda state: state.update(live=["0", 1, 2]),
        lambda state: state.update(weight=math.inf),
        lambda state: state.update(weight=-1.0),
        lambda state: state.update({name: [] if name == "live" else b"" for name in ("live", *COLUMNS, "missed")}),
        lambda state: state.update(drawn=-1),
        lambda state: state.update(drawn=2**63 - 1),
        lambda state: state.update(firsts=[math.nan]),
        lambda state: state.update(firsts=[-1e300]),
        lambda state: state.update(firsts=None),
    ],
)
def test_a_damaged_state_is_refused(change: Change) -> None:
    state = changed(learnt((2.0, [arrive(0, [1.0, 2.0], [0, 1])])).snapshot(), change)
    with pytest.raises(StateDamagedError), damaged_state():
        InterruptedTrips().restore(Raw(state))
