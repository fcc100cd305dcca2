"""Exactly k gradients count, the others are late, and no iteration waits for what cannot come (paper, Section 2)."""

from collections.abc import Set
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_ps.rounds import (
    MAX_ATTEMPTS,
    MAX_ITERATIONS_LEFT_OUT,
    MAX_LOST_IN_A_ROW,
    REMEMBERED_ITERATIONS,
    Arrival,
    Cause,
    End,
    Fate,
    Rounds,
    Verdict,
)

USED, LATE, DUPLICATE, WRONG_VERSION = Verdict.USED, Verdict.LATE, Verdict.DUPLICATE, Verdict.WRONG_VERSION
LEFT_OUT = Verdict.LEFT_OUT


class Played(Rounds):
    """Rounds, and who is alive."""

    def __init__(self, first: int = 0, max_wait: float | None = None) -> None:
        super().__init__(first, max_wait)
        self.live: set[int] = set()

    def join(self, worker: int) -> None:
        self.live.add(worker)
        super().join(worker)

    def leave(self, worker: int) -> None:
        self.live.discard(worker)
        super().leave(worker)

    def arrive(self, worker: int, version: int, now: float) -> Verdict:
        verdict = self.verdict(worker, version)
        self.record(worker, version, verdict, now)
        return verdict

    def over(self, now: float) -> End | None:
        return self.end(now, self.live)

    @property
    def blocked(self) -> bool:
        return self.is_blocked(self.live)

    def start_all_over(self, believed: Set[int] = frozenset()) -> set[int]:
        """Let workers join again that are to; returns which those are."""
        workers = set(self.start_over(self.live, believed))
        for worker in workers:
            self.leave(worker)
        for worker in workers:
            self.join(worker)
        return workers


def rounds_of(workers: int, k: int, first: int = 0, max_wait: float | None = None) -> Played:
    rounds = Played(first, max_wait)
    for worker in range(workers):
        rounds.join(worker)
    assert rounds.begin(k, now=100.0) == first
    return rounds


@pytest.mark.parametrize(("workers", "k"), [(n, k) for n in range(1, 6) for k in range(1, n + 1)])
def test_paper_the_first_k_gradients_are_used_in_whatever_order_they_come(workers: int, k: int) -> None:
    for order in permutations(range(workers)):
        rounds, end = rounds_of(workers, k), None
        for i, worker in enumerate(order):
            now = 100.0 + i
            assert rounds.arrive(worker, 0, now) is (USED if i < k else LATE)
            end = rounds.over(now) or end
            assert (end is not None) == (i + 1 >= k)
        assert end == End(0, k, Cause.K_REACHED, k - 1.0, 0)
        assert rounds.take_arrivals() == [Arrival(0, worker, float(i)) for i, worker in enumerate(order)]
        assert rounds.take_arrivals() == []


def test_what_arrives_in_the_same_instant_as_the_kth_is_late() -> None:
    rounds = rounds_of(3, k=2)
    assert [rounds.arrive(worker, 0, 101.0) for worker in (2, 0, 1)] == [USED, USED, LATE]


def test_a_late_gradient_counts_for_the_time_of_its_own_iteration() -> None:
    rounds = rounds_of(2, k=1)
    rounds.arrive(0, 0, 101.0)
    rounds.over(101.0)
    rounds.begin(1, now=102.0)
    assert rounds.arrive(1, 0, 105.0) is LATE
    assert rounds.arrive(1, 1, 106.0) is USED
    assert rounds.take_arrivals() == [Arrival(0, 0, 1.0), Arrival(0, 1, 5.0), Arrival(1, 1, 4.0)]


def test_a_worker_s_gradient_is_taken_once() -> None:
    rounds = rounds_of(3, k=2)
    assert rounds.arrive(0, 0, 101.0) is USED
    assert rounds.arrive(0, 0, 102.0) is DUPLICATE
    rounds.arrive(1, 0, 103.0)
    rounds.over(103.0)
    assert rounds.arrive(2, 0, 104.0) is LATE
    assert rounds.arrive(2, 0, 105.0) is DUPLICATE
    assert len(rounds.take_arrivals()) == 3


@pytest.mark.parametrize("version", [0, 6, 8, 2**63])
def test_a_version_that_was_never_published_is_wrong(version: int) -> None:
    assert rounds_of(1, k=1, first=7).arrive(0, version, 101.0) is WRONG_VERSION


def test_very_late_is_late_though_nobody_asks_when() -> None:
    rounds = Played()
    rounds.join(0)
    for i in range(REMEMBERED_ITERATIONS + 1):
        rounds.begin(1, now=float(i))
        rounds.arrive(0, i, float(i))
        rounds.over(float(i))
    rounds.take_arrivals()
    assert rounds.arrive(1, 0, 1000.0) is LATE
    assert rounds.take_arrivals() == []
    assert rounds.arrive(1, 1, 1000.0) is LATE
    assert rounds.take_arrivals() == [Arrival(1, 1, 999.0)]


@pytest.mark.parametrize("how", ["leave", "lose", "reject", "complete"])
def test_an_iteration_ends_with_those_that_are_left(how: str) -> None:
    rounds = rounds_of(3, k=3)
    rounds.arrive(0, 0, 101.0)
    rounds.arrive(1, 0, 102.0)
    assert rounds.over(102.0) is None
    {
        "leave": lambda: rounds.leave(2),
        "lose": lambda: rounds.fail(2, 0, Fate.LOST),
        "reject": lambda: rounds.fail(2, 0, Fate.REJECTED),
        "complete": lambda: rounds.complete(2, 0, 103.0),
    }[how]()
    assert rounds.over(103.0) == End(0, 2, Cause.NO_MORE_EXPECTED, 3.0, lost=how != "complete")


def test_a_gradient_that_was_used_stays_so_when_its_worker_leaves() -> None:
    rounds = rounds_of(2, k=2)
    rounds.arrive(0, 0, 101.0)
    rounds.leave(0)
    assert rounds.over(101.0) is None
    rounds.arrive(1, 0, 102.0)
    assert rounds.over(102.0) == End(0, 2, Cause.K_REACHED, 2.0, 0)


def test_no_iteration_ends_without_a_gradient() -> None:
    rounds = rounds_of(2, k=2, max_wait=1.0)
    rounds.leave(0)
    rounds.leave(1)
    assert rounds.over(1e9) is None
    assert not rounds.blocked  # another worker may come
    rounds.join(2)
    rounds.arrive(2, 0, 1e9)
    assert rounds.over(1e9) is not None


def test_a_worker_that_comes_back_is_waited_for_again() -> None:
    rounds = rounds_of(2, k=2)
    rounds.arrive(0, 0, 101.0)
    rounds.fail(1, 0, Fate.LOST)
    rounds.join(1)
    assert rounds.over(101.0) is None
    assert rounds.arrive(1, 0, 102.0) is USED


def test_a_worker_that_comes_back_does_not_count_twice() -> None:
    rounds = rounds_of(2, k=2)
    rounds.arrive(0, 0, 101.0)
    rounds.leave(0)
    rounds.join(0)
    assert rounds.arrive(0, 0, 102.0) is DUPLICATE


def test_one_that_joins_late_is_welcome() -> None:
    rounds = rounds_of(1, k=2)
    rounds.join(5)
    rounds.arrive(0, 0, 101.0)
    assert rounds.over(101.0) is None
    assert rounds.arrive(5, 0, 102.0) is USED


@pytest.mark.parametrize(
    ("max_wait", "deadline", "cause", "seconds"),
    [(5.0, None, Cause.MAX_WAIT, 5.0), (None, 3.0, Cause.DEADLINE, 3.0), (5.0, 3.0, Cause.DEADLINE, 3.0)],
)
def test_an_iteration_may_end_by_the_clock(
    max_wait: float | None, deadline: float | None, cause: Cause, seconds: float
) -> None:
    rounds = Played(0, max_wait)
    for worker in range(2):
        rounds.join(worker)
    rounds.begin(2, 100.0, deadline)
    assert rounds.wake_at is None  # it needs a gradient
    rounds.arrive(0, 0, 101.0)
    assert rounds.wake_at == 100.0 + seconds
    assert rounds.over(100.0 + seconds - 0.001) is None
    assert rounds.over(100.0 + seconds) == End(0, 1, cause, seconds, 0)


def test_past_its_time_an_iteration_ends_with_the_first_gradient() -> None:
    rounds = rounds_of(3, k=3, max_wait=1.0)
    assert rounds.over(150.0) is None
    rounds.arrive(0, 0, 150.0)
    assert rounds.over(150.0) == End(0, 1, Cause.MAX_WAIT, 50.0, 0)


def test_no_gradient_is_usable_when_those_of_all_are_rejected_again_and_again() -> None:
    rounds = rounds_of(2, k=1)
    for attempt in range(MAX_ATTEMPTS):
        rounds.fail(0, 0, Fate.REJECTED)
        assert not rounds.blocked
        rounds.fail(1, 0, Fate.REJECTED)
        assert rounds.blocked
        assert rounds.start_all_over() == ({0, 1} if attempt < MAX_ATTEMPTS - 1 else set())


def test_outliers_that_nobody_believes_are_asked_again_as_often_as_what_was_rejected() -> None:
    rounds = rounds_of(1, k=1)
    for attempt in range(MAX_ATTEMPTS):
        rounds.fail(0, 0, Fate.OUTLIER)
        assert rounds.start_all_over() == ({0} if attempt < MAX_ATTEMPTS - 1 else set())


def test_a_worker_that_tries_again_helps() -> None:
    rounds = rounds_of(1, k=1)
    rounds.fail(0, 0, Fate.REJECTED)
    assert rounds.start_all_over() == {0}
    assert not rounds.blocked
    assert rounds.arrive(0, 0, 101.0) is USED
    assert not rounds.blocked


@pytest.mark.parametrize("how", ["lost", "believed", "completed"])
def test_all_start_over_as_long_as_a_gradient_may_be_right(how: str) -> None:
    """It was lost on its way, seemed too large, or was not sent as a stream had broken.

    Meanwhile a worker whose gradient was rejected may be well again.
    """
    rounds = rounds_of(2, k=1)
    for i in range(3 * MAX_ATTEMPTS):
        rounds.fail(1, 0, Fate.REJECTED)
        if how == "completed":
            rounds.complete(0, 0, 101.0 + i)
        else:
            rounds.fail(0, 0, Fate.LOST if how == "lost" else Fate.OUTLIER)
        assert rounds.blocked
        assert rounds.start_all_over({0} if how == "believed" else set()) == {0, 1}
        assert not rounds.blocked
    assert rounds.arrive(1, 0, 150.0) is USED
    assert rounds.arrive(0, 0, 150.0) is Verdict.LATE
    assert rounds.over(150.0) is not None


@pytest.mark.parametrize("fate", [Fate.REJECTED, Fate.OUTLIER])
def test_workers_whose_gradients_were_refused_try_again_whenever_that_of_another_breaks_off(fate: Fate) -> None:
    rounds = rounds_of(4, k=1)
    rounds.fail(0, 0, fate)
    assert rounds.to_try_again(rounds.live) == set()
    for _ in range(2):
        lose(rounds, 1)
        assert rounds.to_try_again({1, 2, 3}) == set(), "it is not alive"
        lose(rounds, 1)
        assert rounds.to_try_again(rounds.live) == {0}
        assert rounds.to_try_again(rounds.live) == set()
    assert not rounds.blocked
    assert rounds.arrive(2, 0, 101.0) is USED
    lose(rounds, 3)
    assert rounds.to_try_again(rounds.live) == set(), "the iteration ends without it"


def test_a_worker_whose_gradient_may_be_right_starts_over_after_all_attempts_of_others() -> None:
    rounds = rounds_of(1, k=1)
    for _ in range(MAX_ATTEMPTS):
        rounds.fail(0, 0, Fate.OUTLIER)
        again = rounds.start_all_over()
    assert not again
    rounds.join(1)
    rounds.fail(1, 0, Fate.LOST)
    assert rounds.start_all_over() == {0, 1}


def test_a_worker_that_said_that_it_would_not_send_is_waited_for_when_it_joins_again() -> None:
    rounds = rounds_of(2, k=2)
    rounds.complete(0, 0, 101.0)
    rounds.join(0)
    rounds.arrive(1, 0, 102.0)
    assert rounds.over(102.0) is None
    assert rounds.arrive(0, 0, 103.0) is USED
    assert rounds.over(103.0) == End(0, 2, Cause.K_REACHED, 3.0, 0)
    assert rounds.take_arrivals() == [Arrival(0, 1, 2.0), Arrival(0, 0, 3.0)]


def test_what_was_not_sent_in_time_though_it_could_have_been_used_is_no_arrival() -> None:
    """Else it would be among the first k gradients of its iteration, of which all are used."""
    rounds = rounds_of(3, k=2)
    rounds.complete(0, 0, 101.0)
    rounds.arrive(1, 0, 102.0)
    rounds.arrive(2, 0, 103.0)
    assert rounds.over(103.0) == End(0, 2, Cause.K_REACHED, 3.0, 0)
    assert rounds.arrive(0, 0, 104.0) is DUPLICATE
    assert rounds.take_arrivals() == [Arrival(0, 1, 2.0), Arrival(0, 2, 3.0)]


FATES = {"lose": Fate.LOST, "reject": Fate.REJECTED, "outlier": Fate.OUTLIER}
EVENTS = ("arrive", *FATES, "leave", "join", "complete")


def play(events: "list[tuple[str, int]]", k: int, workers: int) -> None:
    """Check what must hold after each event of one iteration."""
    rounds = rounds_of(workers, k)
    used: list[int] = []
    seen: set[int] = set()  # whose gradient has come, or will not
    ended = None
    for i, (what, worker) in enumerate(events):
        now = 101.0 + i
        if what == "arrive":
            expected = rounds.verdict(worker, 0)
            assert rounds.arrive(worker, 0, now) is expected
            if expected is USED:
                assert ended is None
                assert worker not in used
                used.append(worker)
        elif what == "complete":
            rounds.complete(worker, 0, now)
        elif what == "join":
            rounds.join(worker)
        elif what == "leave":
            rounds.leave(worker)
        else:
            rounds.fail(worker, 0, FATES[what])
        came_back = what == "join" and worker not in used and ended is None
        seen = seen - {worker} if came_back else seen | {worker}
        if rounds.blocked:
            assert ended is None
            assert not used
            assert rounds.live <= seen
        end = rounds.over(now)
        if ended is None:
            assert (end is not None) == (bool(used) and (len(used) == k or not rounds.live - seen))
        else:
            assert end is None
        ended = ended or end
        assert ended is None or ended.k == len(used) <= k
    arrived = [arrival.worker for arrival in rounds.take_arrivals()]
    assert len(set(arrived)) == len(arrived)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_short_history_of_two_workers(k: int) -> None:
    for length in range(5):
        for history in product(product(EVENTS, range(2)), repeat=length):
            play(list(history), k, workers=2)


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 4)), max_size=30), st.integers(1, 6))
def test_any_history_of_five_workers(history: list[tuple[str, int]], k: int) -> None:
    play(history, k, workers=5)


def lose(rounds: Rounds, worker: int) -> None:
    """An upload breaks off, which ends the worker's session, and it joins again."""
    rounds.fail(worker, rounds._next - 1, Fate.LOST)
    rounds.leave(worker)
    rounds.join(worker)


def iterate(rounds: Rounds, now: float = 0.0) -> bool:
    """An iteration in which only the first of two workers sends a gradient; returns whether it ends with that."""
    version = rounds.begin(2, now)
    rounds.record(0, version, rounds.verdict(0, version), now)
    return rounds.end(now, {0, 1}) is not None


def test_a_worker_that_loses_gradients_in_a_row_is_left_out_for_some_iterations_and_tried_again() -> None:
    rounds = Rounds(0)
    assert not iterate(rounds)
    for _ in range(MAX_LOST_IN_A_ROW - 1):
        lose(rounds, 1)
        assert rounds.end(0.0, {0, 1}) is None
    for attempt in range(MAX_LOST_IN_A_ROW, 13):
        lose(rounds, 1)
        assert rounds.end(0.0, {0, 1}) is not None
        for _ in range(min(2**attempt, MAX_ITERATIONS_LEFT_OUT)):
            assert iterate(rounds), "it is not waited for"
            assert rounds.verdict(1, rounds._next - 1) is LATE
        assert not iterate(rounds), "it is waited for again"
    rounds.record(1, rounds._next - 1, rounds.verdict(1, rounds._next - 1), 0.0)
    assert rounds.end(0.0, {0, 1}) is not None
    assert not iterate(rounds)
    lose(rounds, 1)
    assert rounds.end(0.0, {0, 1}) is None, "the row has ended"


def test_what_a_worker_sends_that_is_left_out_is_not_received_and_is_no_arrival() -> None:
    rounds = Rounds(0)
    rounds.begin(2, 0.0)
    for _ in range(MAX_LOST_IN_A_ROW):
        lose(rounds, 1)
    assert rounds.verdict(1, 0) is LEFT_OUT
    rounds.complete(1, 0, 1.0)
    rounds.record(0, 0, rounds.verdict(0, 0), 2.0)
    assert rounds.end(2.0, {0, 1}) == End(0, 1, Cause.NO_MORE_EXPECTED, 2.0, MAX_LOST_IN_A_ROW)
    assert rounds.take_arrivals() == [Arrival(0, 0, 2.0)]


def test_what_breaks_off_late_does_not_end_a_row_of_lost_gradients() -> None:
    """Its iteration ended while it was on its way: nobody knows whether all of it would have come."""
    rounds = Rounds(0)
    for _ in range(MAX_LOST_IN_A_ROW):
        assert not iterate(rounds)
        lose(rounds, 1)
        assert rounds.end(0.0, {0}) is not None
        rounds.record(1, rounds._next - 1, rounds.verdict(1, rounds._next - 1), 1.0)
    assert iterate(rounds)


def test_a_worker_that_comes_and_goes_is_not_left_out() -> None:
    rounds = Rounds(0)
    for _ in range(2 * MAX_LOST_IN_A_ROW):
        assert not iterate(rounds)
        for _ in range(MAX_LOST_IN_A_ROW):
            rounds.leave(1)
            rounds.join(1)
        assert rounds.end(0.0, {0, 1}) is None, "it is waited for"
        rounds.leave(1)
        assert rounds.end(0.0, {0}) is not None
        rounds.join(1)


def test_a_worker_that_is_always_late_and_sometimes_joins_again_is_not_left_out() -> None:
    rounds = Rounds(0)
    for i in range(1000):
        version = rounds.begin(1, float(i))
        if i % 10 == 0:
            rounds.leave(1)
            rounds.join(1)
        rounds.record(0, version, rounds.verdict(0, version), float(i))
        assert rounds.end(float(i), {0, 1}) is not None
        assert rounds.verdict(1, version) is LATE
        rounds.record(1, version, LATE, i + 0.5)
    rounds.begin(1, 1000.0)
    assert rounds.verdict(1, 1000) is USED


@pytest.mark.parametrize("order", ["breaks off, leaves", "leaves, breaks off"])
def test_uploads_that_break_off_count_whatever_ended_the_session(order: str) -> None:
    """A worker that times out while it uploads is gone by the time at which the upload ends."""
    rounds = Rounds(0)
    rounds.begin(2, 0.0)
    for _ in range(MAX_LOST_IN_A_ROW):
        if order == "leaves, breaks off":
            rounds.leave(1)
        rounds.fail(1, 0, Fate.LOST)
        rounds.leave(1)
        rounds.join(1)
    assert rounds.verdict(1, 0) is LEFT_OUT
    rounds.record(0, 0, USED, 1.0)
    assert rounds.end(1.0, {0, 1}) is not None, "it is not waited for"


@pytest.mark.parametrize("fate", [Fate.REJECTED, Fate.OUTLIER])
def test_a_gradient_that_was_refused_has_arrived_all_the_same(fate: Fate) -> None:
    rounds = Rounds(0)
    for i in range(2 * MAX_ATTEMPTS):
        rounds.begin(2, i)
        lose(rounds, 1)  # the stream broke,
        rounds.fail(1, i, fate)  # and what came over the next one was refused
        rounds.record(0, i, Verdict.USED, i)
        assert rounds.end(i, {0, 1}) is not None
    rounds.begin(2, 100.0)
    rounds.record(0, 2 * MAX_ATTEMPTS, Verdict.USED, 101.0)
    assert rounds.end(101.0, {0, 1}) is None, "it is waited for"


def test_where_all_workers_lose_their_gradients_they_are_waited_for_all_the_same() -> None:
    rounds = Rounds(0)
    rounds.begin(1, 0.0)
    for _ in range(MAX_ATTEMPTS):
        lose(rounds, 0)
    assert rounds.is_blocked({0})
    assert rounds.start_over({0}) == {0}
    rounds.join(0)
    assert not rounds.is_blocked({0})
