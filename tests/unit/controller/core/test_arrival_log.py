"""Each arrival makes one sample, as soon as it is known what was waited for before it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dbw_controller.core.arrival_log import REMEMBERED_ITERATIONS, ArrivalLog, ArrivalLogState, Sample
from dbw_controller.core.reports import Arrivals
from dbw_controller.core.state import decode, encode

Plain = tuple[int, int, int, list[float]]


def plain(samples: list[Sample]) -> list[Plain]:
    return [(iteration, h, first, seconds.tolist()) for iteration, h, first, seconds in samples]


def arrivals(iteration: int, seconds: list[float], preceding: int = 0) -> Arrivals:
    return Arrivals(iteration, np.array(seconds), preceding)


def new_log(previous_k: int | None = 4) -> ArrivalLog:
    log = ArrivalLog()
    log.begin(0)
    if previous_k is not None:
        log.learn_previous_k(0, previous_k)
    return log


def test_arrivals_make_samples_of_what_was_waited_for_before() -> None:
    log = new_log(previous_k=4)
    assert plain(log.arrive(arrivals(0, [1.0, 2.0]), most=4)) == [(0, 4, 1, [1.0, 2.0])]
    log.end(0, k=2, live_workers=4)
    assert plain(log.arrive(arrivals(1, [3.0]), most=4)) == [(1, 2, 1, [3.0])]


def test_a_late_arrival_counts_for_its_own_iteration() -> None:
    log = new_log(previous_k=4)
    log.end(0, k=2, live_workers=4)
    log.end(1, k=3, live_workers=4)
    assert plain(log.arrive(arrivals(0, [9.0], preceding=2), most=4)) == [(0, 4, 3, [9.0])]


def test_an_arrival_counts_once() -> None:
    log = new_log()
    log.arrive(arrivals(0, [1.0, 2.0]), most=4)
    assert log.arrive(arrivals(0, [1.0, 2.0]), most=4) == []
    assert plain(log.arrive(arrivals(0, [1.0, 2.0, 3.0, 4.0]), most=4)) == [(0, 4, 3, [3.0]), (0, 4, 4, [4.0])]


def test_ranks_may_come_in_any_order() -> None:
    log = new_log()
    assert plain(log.arrive(arrivals(0, [3.0], preceding=2), most=4)) == [(0, 4, 3, [3.0])]
    assert plain(log.arrive(arrivals(0, [1.0, 2.0]), most=4)) == [(0, 4, 1, [1.0, 2.0])]


def test_arrivals_wait_until_it_is_known_what_was_waited_for() -> None:
    log = new_log(previous_k=None)
    assert log.arrive(arrivals(0, [1.0]), most=4) == []
    assert plain(log.learn_previous_k(0, 3)) == [(0, 3, 1, [1.0])]
    assert log.arrive(arrivals(1, [2.0]), most=4) == []
    assert plain(log.end(0, k=2, live_workers=4)) == [(1, 2, 1, [2.0])]


def test_arrivals_of_an_iteration_that_ended_unknown_are_of_no_use() -> None:
    log = new_log(previous_k=None)
    log.arrive(arrivals(0, [1.0]), most=4)
    log.end(0, k=2, live_workers=4)
    assert log.learn_previous_k(0, 3) == []
    log.end(5, k=2, live_workers=4)  # 1 to 4 were lost
    assert log.arrive(arrivals(3, [1.0]), most=4) == []


def test_ranks_beyond_the_number_of_workers_are_ignored() -> None:
    log = new_log()
    assert plain(log.arrive(arrivals(0, [1.0, 2.0, 3.0], preceding=2), most=4)) == [(0, 4, 3, [1.0, 2.0])]
    assert log.arrive(arrivals(0, [1.0], preceding=2**32 - 1), most=4) == []


def test_arrivals_of_long_ago_are_ignored() -> None:
    log = new_log()
    for iteration in range(REMEMBERED_ITERATIONS + 2):
        log.end(iteration, k=2, live_workers=4)
    assert log.arrive(arrivals(1, [1.0]), most=4) == []
    assert len(log.arrive(arrivals(2, [1.0]), most=4)) == 1


def test_arrivals_of_the_far_future_are_ignored() -> None:
    log = new_log()
    log.arrive(arrivals(10**15, [1.0]), most=4)
    assert log.learn_previous_k(10**15, 2) == []


def test_memory_is_bounded_whatever_is_reported() -> None:
    log = new_log()
    for iteration in range(5 * REMEMBERED_ITERATIONS):
        log.arrive(arrivals(iteration + 3 * (iteration % 500), [1.0, 2.0]), most=4)
        log.arrive(arrivals(7 * iteration, [1.0]), most=4)
        log.end(iteration, k=2, live_workers=4)
    state = log.snapshot()
    assert len(state.entries) <= 3 * REMEMBERED_ITERATIONS + 1
    assert len(state.waiting) <= 2 * REMEMBERED_ITERATIONS


def test_going_back_forgets_what_came_after() -> None:
    log = new_log()
    for iteration in range(4):
        log.arrive(arrivals(iteration, [1.0]), most=4)
        log.end(iteration, k=2, live_workers=4)
    log.begin(2)
    log.learn_previous_k(2, 4)
    assert plain(log.arrive(arrivals(2, [5.0]), most=4)) == [(2, 4, 1, [5.0])]
    assert log.arrive(arrivals(1, [1.0]), most=4) == []


def test_iterations_after_which_nobody_was_late_are_counted() -> None:
    log = new_log()
    counts = []
    for iteration, (k, times) in enumerate(
        [(2, [1.0, 2.0]), (4, [1.0, 2.0, 3.0, 4.0]), (2, [1.0]), (2, [1.0, 2.0, 3.0])]
    ):
        log.arrive(arrivals(iteration, times), most=4)
        log.end(iteration, k, live_workers=4)
        counts.append(log.ended_without_late)
    assert counts == [1, 1, 2, 0]
    log.end(4, k=1, live_workers=4)
    log.arrive(arrivals(0, [9.0], preceding=2), most=4)
    assert log.ended_without_late == 0


def test_arrivals_that_were_not_waited_for_are_counted_once_whenever_they_are_reported() -> None:
    log = new_log()
    log.arrive(arrivals(0, [1.0, 2.0, 3.0]), most=4)  # before it is known how many are waited for
    assert log.late_arrivals == 0
    log.end(0, k=2, live_workers=4)
    assert log.late_arrivals == 1
    log.arrive(arrivals(0, [2.0, 3.0, 4.0, 5.0], preceding=1), most=4)  # the last is of no worker that there is
    assert log.late_arrivals == 2
    log.arrive(arrivals(0, [1.0, 2.0, 3.0, 4.0]), most=4)
    log.arrive(arrivals(1, [1.0], preceding=3), most=4)
    assert log.late_arrivals == 2
    log.end(1, k=2, live_workers=4)
    log.arrive(arrivals(1, [1.0, 2.0]), most=4)  # reported late, but waited for
    assert log.late_arrivals == 3


def test_after_a_restart_only_new_late_arrivals_are_counted() -> None:
    log = new_log()
    log.arrive(arrivals(0, [1.0, 2.0, 3.0]), most=4)
    log.end(0, k=2, live_workers=4)
    restored = ArrivalLog()
    restored.restore(log.snapshot())
    restored.arrive(arrivals(0, [1.0, 2.0, 3.0, 4.0]), most=4)
    assert restored.late_arrivals == 1


@given(st.data())
def test_however_they_are_reported_each_rank_makes_one_sample_and_snapshots_hold_everything(
    data: st.DataObject,
) -> None:
    workers, iterations = 4, 3
    reports = [
        (iteration, first, last)
        for iteration in range(iterations)
        for first, last in data.draw(
            st.lists(st.tuples(st.integers(1, workers), st.integers(1, workers)).filter(lambda r: r[0] <= r[1]))
        )
    ]
    log, samples = new_log(), []
    for step, (iteration, first, last) in enumerate(data.draw(st.permutations(reports))):
        samples += log.arrive(arrivals(iteration, [float(rank) for rank in range(first, last + 1)], first - 1), workers)
        if step % 3 == 2 and step // 3 < iterations:
            samples += log.end(step // 3, k=2, live_workers=workers)
        copy = ArrivalLog()
        copy.restore(decode(encode(log.snapshot()), ArrivalLogState))
        assert copy.snapshot() == log.snapshot()
        log = copy
    seen = [(i, first + j) for i, _, first, seconds in samples for j in range(len(seconds))]
    assert len(seen) == len(set(seen))
    assert all(seconds.tolist() == [first + j for j in range(len(seconds))] for _, _, first, seconds in samples)
