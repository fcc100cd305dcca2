"""The virtual clock against timelines that are worked out by hand, and against a reckoning without events."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_controller.core.spec import SyncMode
from dbw_experiments.laboratory.cluster import Cluster, Iteration
from dbw_experiments.laboratory.membership import parse_membership
from dbw_ps.rounds import Arrival, Cause
from dbw_worker.delays import parse_delay
from dbw_worker.randomness import draws_of

WAIT, INTERRUPT, PULL = SyncMode.PUSH_WAIT, SyncMode.PUSH_INTERRUPT, SyncMode.PULL
WAITING = pytest.mark.parametrize("mode", [WAIT, PULL], ids=["push-wait", "pull"])
DELAYS = ["exp:1", "uniform:0.5,3", "shifted-exp:0.3,0.7", "pareto:1.5,0.1", "exp:1 * factors:1,1,7"]

# Binary fractions, so that sums are exact; no two gradients come at the same time before t = 9.
UNEVEN = "constant:1 * factors:1,2.25,4.125"


def cluster(delay: str, workers: int = 3, mode: SyncMode = WAIT, seed: int = 0, membership: str = "") -> Cluster:
    return Cluster(workers, parse_delay(delay), seed, mode, parse_membership(membership, workers))


def trace(folder: Path, *steps: Sequence[float]) -> str:
    """The delay with these seconds: a line for each version, a column for each worker."""
    rows = [f"{step},{worker},{seconds}" for step, line in enumerate(steps) for worker, seconds in enumerate(line)]
    file = folder / "trace.csv"
    file.write_text("\n".join(["step,worker,seconds", *rows]) + "\n")
    return f"trace:{file}"


def told(iteration: Iteration) -> tuple[float, float, tuple[int, ...], list[tuple[int, int, float]]]:
    """When it was published, how long it lasted, whose gradients it used, and all arrivals."""
    return iteration.published, iteration.end.seconds, iteration.workers, [(*one,) for one in iteration.arrivals]


@WAITING
def test_a_late_worker_finishes_its_stale_gradient_and_goes_on_with_the_newest_parameters(mode: SyncMode) -> None:
    """With k = 1 and round trips of 1, 2.25 and 4.125 s, worker 0 sets the pace.

    | t     | event                                                            |
    |-------|------------------------------------------------------------------|
    | 0     | version 0: all three begin                                       |
    | 1     | worker 0 used; version 1: worker 0 begins                        |
    | 2     | worker 0 used; version 2: worker 0 begins                        |
    | 2.25  | worker 1 late for version 0; begins with 2, without having seen 1|
    | 3     | worker 0 used; version 3: worker 0 begins                        |
    | 4     | worker 0 used; version 4: worker 0 begins                        |
    | 4.125 | worker 2 late for version 0; begins with 4                       |
    | 4.5   | worker 1 late for version 2, 2.5 s old; begins with 4            |
    | 5     | worker 0 used; version 5: worker 0 begins                        |
    | 6     | worker 0 used; version 6: worker 0 begins                        |
    | 6.75  | worker 1 late for version 4, 2.75 s old; begins with 6           |
    | 7     | worker 0 used                                                    |
    """
    training = cluster(UNEVEN, mode=mode)
    assert [told(training.iterate(1)) for _ in range(7)] == [
        (0.0, 1.0, (0,), [(0, 0, 1.0)]),
        (1.0, 1.0, (0,), [(1, 0, 1.0)]),
        (2.0, 1.0, (0,), [(0, 1, 2.25), (2, 0, 1.0)]),
        (3.0, 1.0, (0,), [(3, 0, 1.0)]),
        (4.0, 1.0, (0,), [(0, 2, 4.125), (2, 1, 2.5), (4, 0, 1.0)]),
        (5.0, 1.0, (0,), [(5, 0, 1.0)]),
        (6.0, 1.0, (0,), [(4, 1, 2.75), (6, 0, 1.0)]),
    ]
    assert training.now == 7.0


# Seconds of workers 0, 1, 2 for the versions 0, 1, 2.
STEPS = [(1.0, 2.0, 4.0), (5.0, 3.5, 1.0), (2.0, 2.5, 8.0)]


@WAITING
def test_a_worker_that_was_late_can_still_be_used(tmp_path: Path, mode: SyncMode) -> None:
    """With k = 2.

    | t   | event                                                                          |
    |-----|--------------------------------------------------------------------------------|
    | 0   | version 0: done at 1, 2 and 4                                                  |
    | 2   | workers 0 and 1 used; version 1: worker 0 until 7, worker 1 until 5.5          |
    | 4   | worker 2 late for version 0; begins with 1, until 5                            |
    | 5.5 | workers 2 and 1 used; version 2: worker 1 until 8, worker 2 until 13.5         |
    | 7   | worker 0 late for version 1, 5 s after it was published; begins with 2, until 9|
    | 9   | workers 1 and 0 used                                                           |
    """
    training = cluster(trace(tmp_path, *STEPS), mode=mode)
    assert [told(training.iterate(2)) for _ in range(3)] == [
        (0.0, 2.0, (0, 1), [(0, 0, 1.0), (0, 1, 2.0)]),
        (2.0, 3.5, (2, 1), [(0, 2, 4.0), (1, 2, 3.0), (1, 1, 3.5)]),
        (5.5, 3.5, (1, 0), [(1, 0, 5.0), (2, 1, 2.5), (2, 0, 3.5)]),
    ]


def test_interrupted_workers_begin_again_with_every_version(tmp_path: Path) -> None:
    """With k = 2 and the same trace.

    | t   | event                                                         |
    |-----|---------------------------------------------------------------|
    | 0   | version 0: done at 1, 2 and 4                                 |
    | 2   | workers 0 and 1 used, 2 interrupted; version 1: 7, 5.5 and 3  |
    | 5.5 | workers 2 and 1 used, 0 interrupted; version 2: 7.5, 8 and 13.5|
    | 8   | workers 0 and 1 used                                          |
    """
    training = cluster(trace(tmp_path, *STEPS), mode=INTERRUPT)
    assert [told(training.iterate(2)) for _ in range(3)] == [
        (0.0, 2.0, (0, 1), [(0, 0, 1.0), (0, 1, 2.0)]),
        (2.0, 3.5, (2, 1), [(1, 2, 1.0), (1, 1, 3.5)]),
        (5.5, 2.5, (0, 1), [(2, 0, 2.0), (2, 1, 2.5)]),
    ]


def test_k_can_change_from_one_iteration_to_the_next() -> None:
    """Round trips of 1, 2.25 and 4.125 s, k = 3, 1, 2.

    | t     | event                                                                     |
    |-------|---------------------------------------------------------------------------|
    | 0     | version 0: done at 1, 2.25 and 4.125                                      |
    | 4.125 | all used; version 1: done at 5.125, 6.375 and 8.25                        |
    | 5.125 | worker 0 used; version 2: worker 0 until 6.125                            |
    | 6.125 | worker 0 used and idle, one more is needed                                |
    | 6.375 | worker 1 late for version 1; begins with 2, until 8.625                   |
    | 8.25  | worker 2 late for version 1; begins with 2, until 12.375                  |
    | 8.625 | worker 1 used                                                             |
    """
    training = cluster(UNEVEN)
    assert [told(training.iterate(k)) for k in (3, 1, 2)] == [
        (0.0, 4.125, (0, 1, 2), [(0, 0, 1.0), (0, 1, 2.25), (0, 2, 4.125)]),
        (4.125, 1.0, (0,), [(1, 0, 1.0)]),
        (5.125, 3.5, (0, 1), [(2, 0, 1.0), (1, 1, 2.25), (1, 2, 4.125), (2, 1, 3.5)]),
    ]


@WAITING
def test_of_gradients_that_come_in_the_same_instant_k_are_used_and_the_others_late(mode: SyncMode) -> None:
    """All four take 1 s, k = 2: the other two are late at once, and begin with what is published in that instant."""
    training = cluster("constant:1", workers=4, mode=mode)
    assert told(training.iterate(2)) == (0.0, 1.0, (0, 1), [(0, 0, 1.0), (0, 1, 1.0)])
    for version in range(1, 5):
        late = [(version - 1, 2, 1.0), (version - 1, 3, 1.0)]
        used = [(version, 0, 1.0), (version, 1, 1.0)]
        assert told(training.iterate(2)) == (float(version), 1.0, (0, 1), late + used)


@WAITING
@pytest.mark.parametrize("slow", [0, 1])
def test_of_gradients_that_come_in_the_same_instant_those_of_the_newest_version_come_first(
    mode: SyncMode, slow: int
) -> None:
    """The fast worker ends version 2 at t = 3, when the slow one is done with version 0 and begins with version 3.

    It does not begin with version 2, which ends in that instant, whatever its number is.
    """
    training = cluster(f"constant:1 * slowdown:3,workers={slow}", workers=2, mode=mode)
    assert [told(training.iterate(1))[3] for _ in range(7)] == [
        [(0, 1 - slow, 1.0)],
        [(1, 1 - slow, 1.0)],
        [(2, 1 - slow, 1.0)],
        [(0, slow, 3.0), (3, 1 - slow, 1.0)],
        [(4, 1 - slow, 1.0)],
        [(5, 1 - slow, 1.0)],
        [(3, slow, 3.0), (6, 1 - slow, 1.0)],
    ]


def test_gradients_that_come_in_the_same_instant_as_the_kth_are_interrupted() -> None:
    training = cluster("constant:1", workers=4, mode=INTERRUPT)
    for version in range(5):
        assert told(training.iterate(2)) == (version, 1.0, (0, 1), [(version, 0, 1.0), (version, 1, 1.0)])


@pytest.mark.parametrize("mode", SyncMode)
def test_without_delays_no_time_passes(mode: SyncMode) -> None:
    training = cluster("none", workers=4, mode=mode)
    assert [training.iterate(k).end.k for k in (1, 2, 3, 4, 4, 1)] == [1, 2, 3, 4, 4, 1]
    assert training.now == 0.0


def test_a_deadline_ends_an_iteration_with_the_gradients_that_are_in() -> None:
    """Round trips of 1, 2.25 and 4.125 s, k = 3: at 1.5 s, only worker 0 is done."""
    training = cluster(UNEVEN)
    iteration = training.iterate(3, deadline=1.5)
    assert told(iteration) == (0.0, 1.5, (0,), [(0, 0, 1.0)])
    assert (iteration.end.k, iteration.end.cause, training.now) == (1, Cause.DEADLINE, 1.5)
    # Worker 0 has version 1 at 1.5 and is done at 2.5, as worker 1 comes late at 2.25.
    assert told(training.iterate(1)) == (1.5, 1.0, (0,), [(0, 1, 2.25), (1, 0, 1.0)])


def test_a_deadline_is_extended_until_the_first_gradient_of_its_iteration() -> None:
    """Round trips of 1, 2.25 and 4.125 s: a late gradient, at 2.25, is not one."""
    training = cluster(UNEVEN)
    training.iterate(1, deadline=0.25)
    assert training.now == 1.0
    training.iterate(3, deadline=0.5)  # worker 0 at 2 though only 1.5 was allowed
    assert training.now == 2.0
    iteration = training.iterate(2, deadline=0.5)
    assert told(iteration) == (2.0, 1.0, (0,), [(0, 1, 2.25), (2, 0, 1.0)])
    assert iteration.end.cause is Cause.DEADLINE


def test_a_deadline_that_is_not_reached_changes_nothing() -> None:
    with_deadline, without = cluster(UNEVEN), cluster(UNEVEN)
    for k in (2, 1, 3, 1):
        assert with_deadline.iterate(k, deadline=100.0) == without.iterate(k)


@pytest.mark.parametrize("mode", SyncMode)
def test_an_iteration_ends_when_all_workers_are_done_though_more_were_asked_for(mode: SyncMode) -> None:
    iteration = cluster(UNEVEN, mode=mode).iterate(5)
    assert (iteration.end.k, iteration.end.cause, iteration.end.seconds) == (3, Cause.NO_MORE_EXPECTED, 4.125)


def test_a_slowdown_that_starts_in_the_middle_slows_what_begins_after_that() -> None:
    """Worker 0 is three times slower from t = 3 on, until 10, and alone in being so.

    | version | published | worker 0                       | worker 1 |
    |---------|-----------|--------------------------------|----------|
    | 0       | 0         | 2                              | 2        |
    | 1       | 2         | 4: it was begun before t = 3   | 4        |
    | 2       | 4         | 10: three times 2 s            | 6        |
    | 3       | 10        | 12: the slowdown is over       | 12       |
    """
    training = cluster("constant:2 * slowdown:3,from=3,until=10,workers=0", workers=2)
    assert [training.iterate(2).end.seconds for _ in range(4)] == [2.0, 2.0, 6.0, 2.0]


def test_a_stale_gradient_delays_the_next_one_by_the_clock_not_by_its_version() -> None:
    """Worker 1 takes 1.5 s, and 5 times as long from t = 2 on; k = 1.

    It is late at 1.5, begins with version 1 and is late again at 3; what it begins then takes 7.5 s, until 10.5.
    """
    training = cluster("constant:1 * factors:1,1.5 * slowdown:5,from=2,workers=1", workers=2)
    arrivals = [arrival for _ in range(11) for arrival in training.iterate(1).arrivals if arrival.worker == 1]
    # At t = 3 worker 0 is used first, being the lower number: version 3 is published before worker 1 goes on.
    assert arrivals == [Arrival(0, 1, 1.5), Arrival(1, 1, 2.0), Arrival(3, 1, 7.5)]


@pytest.mark.parametrize("mode", SyncMode)
def test_an_iteration_ends_when_those_have_left_that_it_waits_for(mode: SyncMode) -> None:
    """Round trips of 1, 2.25 and 4.125 s, k = 3: at 3 s worker 2 leaves, and its gradient is lost."""
    training = cluster(UNEVEN, mode=mode, membership="2@3")
    assert training.live == [0, 1, 2]
    iteration = training.iterate(3)
    assert told(iteration) == (0.0, 3.0, (0, 1), [(0, 0, 1.0), (0, 1, 2.25)])
    assert (iteration.end.k, iteration.end.cause, iteration.end.lost) == (2, Cause.NO_MORE_EXPECTED, 1)
    assert training.live == [0, 1]
    iteration = training.iterate(2)
    assert told(iteration) == (3.0, 2.25, (0, 1), [(1, 0, 1.0), (1, 1, 2.25)])
    assert (iteration.end.cause, iteration.end.lost) == (Cause.K_REACHED, 0)


@pytest.mark.parametrize("mode", SyncMode)
def test_a_worker_that_comes_back_begins_at_once_with_the_current_parameters(mode: SyncMode) -> None:
    """Round trips of 1, 2.25 and 4.125 s, k = 3.

    | t     | event                                                        |
    |-------|--------------------------------------------------------------|
    | 0     | version 0: done at 1, 2.25 and 4.125                         |
    | 1     | worker 0 used                                                |
    | 1.5   | worker 1 leaves, its gradient is lost                        |
    | 2     | worker 1 comes back, and begins again with 0, until 4.25     |
    | 4.125 | worker 2 used                                                |
    | 4.25  | worker 1 used                                                |
    """
    training = cluster(UNEVEN, mode=mode, membership="1@1.5-2")
    iteration = training.iterate(3)
    assert told(iteration) == (0.0, 4.25, (0, 2, 1), [(0, 0, 1.0), (0, 2, 4.125), (0, 1, 4.25)])
    assert (iteration.end.cause, iteration.end.lost) == (Cause.K_REACHED, 1)


@pytest.mark.parametrize("mode", SyncMode)
def test_a_worker_that_comes_back_does_not_compute_again_what_was_used(mode: SyncMode) -> None:
    """Worker 0 is used at 1, away from 1.5 to 2, and idle until the next version, at 4.125."""
    training = cluster(UNEVEN, mode=mode, membership="0@1.5-2")
    iteration = training.iterate(3)
    assert told(iteration) == (0.0, 4.125, (0, 1, 2), [(0, 0, 1.0), (0, 1, 2.25), (0, 2, 4.125)])
    assert iteration.end.lost == 0
    assert told(training.iterate(1)) == (4.125, 1.0, (0,), [(1, 0, 1.0)])


@WAITING
def test_a_late_gradient_is_not_told_of_a_worker_that_has_left(mode: SyncMode) -> None:
    """Round trips of 1, 2.25 and 4.125 s, k = 1: worker 2 is away from 3.5 to 6.25, and then begins with version 6."""
    training = cluster(UNEVEN, mode=mode, membership="2@3.5-6.25")
    arrivals = [arrival for _ in range(11) for arrival in training.iterate(1).arrivals if arrival.worker == 2]
    assert arrivals == [Arrival(6, 2, 4.375)]


@pytest.mark.parametrize("mode", SyncMode)
def test_gradients_of_the_instant_in_which_their_workers_leave_are_used(mode: SyncMode) -> None:
    """And those that leave as an iteration ends do not get the next parameters; those that come do."""
    training = cluster("constant:1", workers=4, mode=mode, membership="0-1@2-3")
    ends = [(training.iterate(len(training.live)).end, training.live) for _ in range(4)]
    assert [(end.k, end.cause, end.seconds, end.lost) for end, _ in ends] == [
        (k, Cause.K_REACHED, 1.0, 0) for k in (4, 4, 2, 4)
    ]
    assert [live for _, live in ends] == [[0, 1, 2, 3], [2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_workers_may_be_away_at_first() -> None:
    """Worker 0 comes at 1.5, in the middle of the iteration that is published at 1 and waits for two."""
    training = cluster("constant:1 * factors:1,1,4", membership="0@0-1.5")
    assert training.live == [1, 2]
    assert told(training.iterate(1)) == (0.0, 1.0, (1,), [(0, 1, 1.0)])
    assert told(training.iterate(2)) == (1.0, 1.5, (1, 0), [(1, 1, 1.0), (1, 0, 1.5)])


def test_workers_may_take_turns_in_one_instant() -> None:
    """Worker 0 comes as worker 1 leaves with the only gradient under way: the iteration waits for the other."""
    training = cluster("constant:2", workers=2, membership="0@0-1, 1@1")
    iteration = training.iterate(1)
    assert told(iteration) == (0.0, 3.0, (0,), [(0, 0, 3.0)])
    assert (iteration.end.cause, iteration.end.lost) == (Cause.K_REACHED, 1)


def test_a_deadline_holds_though_workers_come_and_go() -> None:
    """At 1.5 s worker 0 is done, worker 1 has left at 1.25, and worker 2 takes longer."""
    training = cluster(UNEVEN, membership="1@1.25")
    iteration = training.iterate(3, deadline=1.5)
    assert told(iteration) == (0.0, 1.5, (0,), [(0, 0, 1.0)])
    assert (iteration.end.cause, iteration.end.lost) == (Cause.DEADLINE, 1)


modes = st.sampled_from(list(SyncMode))
seeds = st.integers(0, 2**32)


@st.composite
def trainings(draw: st.DrawFn) -> tuple[int, list[int], str, int]:
    """How many workers, which k's, a delay and a seed."""
    workers = draw(st.integers(1, 6))
    ks = draw(st.lists(st.integers(1, workers), min_size=1, max_size=12))
    return workers, ks, draw(st.sampled_from(DELAYS)), draw(seeds)


def reckoned(workers: int, ks: Sequence[int], text: str, seed: int, mode: SyncMode) -> list[tuple[float, list[int]]]:
    """When each iteration ends and whose gradients it uses, without events.

    A worker begins with the current version as soon as that is published and its stale gradient is done. The k that
    are done first end the iteration. Of the others, those that have begun are busy with this version until they are
    done, and those that have not are busy with an older one.
    """
    delay = parse_delay(text)
    published, busy = 0.0, np.zeros(workers)
    expected = []
    for version, k in enumerate(ks):
        begun = np.full(workers, published) if mode is INTERRUPT else np.maximum(busy, published)
        seconds = [
            delay.seconds(worker, version, begun.item(worker), draws_of(seed, worker, version)[1])
            for worker in range(workers)
        ]
        done = begun + seconds
        order = np.argsort(done)
        published = done.item(order[k - 1])
        expected.append((published, order[:k].tolist()))
        busy = np.where(done <= published, published, np.where(begun < published, done, busy))
    return expected


@given(trainings(), modes)
def test_the_clock_agrees_with_a_reckoning_of_the_real_workers_delays(
    training: tuple[int, list[int], str, int], mode: SyncMode
) -> None:
    """A delay is what a real worker draws for that version, at that time."""
    workers, ks, text, seed = training
    simulated = cluster(text, workers, mode, seed)
    for k, (end, used) in zip(ks, reckoned(workers, ks, text, seed, mode), strict=True):
        assert list(simulated.iterate(k).workers) == used
        assert simulated.now == end


@given(trainings())
def test_pull_is_push_and_wait_where_nothing_but_delays_takes_time(training: tuple[int, list[int], str, int]) -> None:
    workers, ks, text, seed = training
    waiting, pulling = cluster(text, workers, WAIT, seed), cluster(text, workers, PULL, seed)
    assert [waiting.iterate(k) for k in ks] == [pulling.iterate(k) for k in ks]


@given(trainings())
def test_no_late_arrivals_are_reported_where_workers_are_interrupted(training: tuple[int, list[int], str, int]) -> None:
    workers, ks, text, seed = training
    simulated = cluster(text, workers, INTERRUPT, seed)
    for version, k in enumerate(ks):
        iteration = simulated.iterate(k)
        assert [arrival.iteration for arrival in iteration.arrivals] == [version] * k
        assert tuple(arrival.worker for arrival in iteration.arrivals) == iteration.workers


@given(trainings(), modes)
def test_gradients_are_told_once_in_order_of_arrival_with_the_seconds_since_their_own_publication(
    training: tuple[int, list[int], str, int], mode: SyncMode
) -> None:
    workers, ks, text, seed = training
    simulated = cluster(text, workers, mode, seed)
    iterations = [simulated.iterate(k) for k in ks]
    published = [iteration.published for iteration in iterations]
    arrivals = [arrival for iteration in iterations for arrival in iteration.arrivals]
    assert len({(arrival.iteration, arrival.worker) for arrival in arrivals}) == len(arrivals)
    times = [published[arrival.iteration] + arrival.seconds for arrival in arrivals]
    assert times == pytest.approx(sorted(times), abs=1e-9)
    for version, (k, iteration) in enumerate(zip(ks, iterations, strict=True)):
        assert iteration.end.iteration == version
        assert len(iteration.workers) == iteration.end.k == k
        used = [arrival for arrival in iteration.arrivals if arrival.iteration == version]
        assert tuple(arrival.worker for arrival in used) == iteration.workers
        assert used[-1].seconds == iteration.end.seconds


absences = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20), st.none() | st.integers(1, 10)), max_size=6)


@given(trainings(), modes, absences)
def test_gradients_come_from_workers_that_are_there(
    training: tuple[int, list[int], str, int], mode: SyncMode, absent: list[tuple[int, int, int | None]]
) -> None:
    """A worker more than in the training stays, and none of the others is away twice."""
    workers, ks, text, seed = training
    away = {worker: (start, start + for_ if for_ else None) for worker, start, for_ in absent if worker < workers}
    membership = ", ".join(f"{who}@{start}{f'-{until}' if until else ''}" for who, (start, until) in away.items())
    simulated = cluster(text, workers + 1, mode, seed, membership)
    published = []
    for k in ks:
        iteration = simulated.iterate(k)
        published.append(iteration.published)
        assert len(set(iteration.workers)) == iteration.end.k <= k
        assert iteration.end.cause is (Cause.K_REACHED if iteration.end.k == k else Cause.NO_MORE_EXPECTED)
        for version, worker, seconds in iteration.arrivals:
            start, until = away.get(worker, (None, None))
            came = published[version] + seconds
            assert start is None or came <= start + 1e-9 or (until is not None and came >= until)
        assert simulated.live == [
            worker
            for worker in range(workers + 1)
            if worker not in away or simulated.now < away[worker][0] or simulated.now >= (away[worker][1] or 1e9)
        ]


@given(trainings(), modes)
def test_who_leaves_after_the_end_changes_nothing(training: tuple[int, list[int], str, int], mode: SyncMode) -> None:
    workers, ks, text, seed = training
    staying, leaving = cluster(text, workers + 1, mode, seed), cluster(text, workers + 1, mode, seed, "0@900000000")
    assert [leaving.iterate(k) for k in ks] == [staying.iterate(k) for k in ks]
