"""A worker is stalled when its computation takes far longer than ever before, and not because it is slow."""

import math
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_ps.members import Member, Members
from dbw_ps.pace import FIRST_TIMEOUTS, STALLED_FACTOR

TIMEOUT = 30.0
SECONDS = st.floats(0.001, 10_000.0)


class Played:
    """Members that compute, heartbeat by heartbeat."""

    def __init__(self, *ids: str) -> None:
        self.members, self.now = Members(secrets.token_urlsafe, TIMEOUT), 0.0
        self.workers = {id_: self.members.join(id_, 0.0)[0] for id_ in ids}
        self.sent = 0

    def beat(self, id_: str, version: int, seconds: float) -> None:
        self.workers[id_].pace.compute(version, seconds, self.now)

    def compute(self, id_: str, seconds: float, version: int = 0) -> bool:
        """One computation from its beginning to its end; returns whether it was ever stalled."""
        self.now += seconds
        self.beat(id_, version, seconds)
        self.members.find_stalled(self.now)
        stalled = self.workers[id_].number in self.members.stalled
        self.workers[id_].pace.finish(version, seconds, self.now)
        self.members.find_stalled(self.now)
        return stalled

    def send(self, id_: str, version: int, seconds: float = 0.0) -> None:
        """Parameters are sent, which takes this long."""
        self.workers[id_].pace.send(version, self.now)
        self.now += seconds
        self.workers[id_].pace.sent(self.now)

    def idle(self, id_: str, seconds: float) -> bool:
        """The worker says that it computes nothing, all this time; returns whether it is stalled then."""
        self.now += seconds
        self.workers[id_].pace.wait()
        self.members.find_stalled(self.now)
        return self.workers[id_].number in self.members.stalled

    def hang(self, id_: str, seconds: float) -> list[Member]:
        """A computation that takes at least this long; returns whose state has changed."""
        self.now += seconds
        self.beat(id_, 7, seconds)
        return self.members.find_stalled(self.now)


def warm(*ids: str, seconds: float = 0.1) -> Played:
    """Workers that have computed for some time."""
    played = Played(*ids)
    for id_ in ids:
        for _ in range(3):
            assert not played.compute(id_, seconds)
    return played


@given(SECONDS)
def test_a_worker_is_stalled_after_ten_times_its_longest_computation_and_the_time_out(seconds: float) -> None:
    played = warm("a", "b", seconds=min(seconds, FIRST_TIMEOUTS * TIMEOUT))
    limit = max(STALLED_FACTOR * min(seconds, FIRST_TIMEOUTS * TIMEOUT), TIMEOUT)
    assert played.hang("a", 0.99 * limit) == []
    assert played.hang("a", 1.01 * limit) == [played.workers["a"]]
    assert played.members.live == {1}
    assert played.members.stalled == {0}
    assert played.hang("a", 2 * limit) == [], "it is told once"


@given(st.lists(st.floats(0.5, 1.5), min_size=1), SECONDS)
def test_a_worker_that_is_constantly_slow_is_not_stalled(factors: list[float], seconds: float) -> None:
    """Ten times slower than the other one, and its computations vary."""
    first = min(10 * seconds, FIRST_TIMEOUTS * TIMEOUT)
    played = warm("fast", seconds=first / 10)
    played.workers["slow"] = played.members.join("slow", played.now)[0]
    assert not any(played.compute("slow", first) for _ in range(2))
    for factor in factors:
        assert not played.compute("fast", factor * first / 10)
        assert not played.compute("slow", factor * first)


@given(st.lists(st.floats(0.01, 3.0), min_size=1, max_size=12), st.floats(0.001, 600.0))
def test_a_worker_that_becomes_three_times_slower_again_and_again_is_not_stalled(
    factors: list[float], seconds: float
) -> None:
    played = warm("a", seconds=seconds)
    longest = seconds
    for factor in factors:
        assert not played.compute("a", factor * longest)
        longest = max(longest, factor * longest)


def test_a_first_computation_may_compile_kernels_for_minutes() -> None:
    played = warm("warm")
    cold, session = played.members.join("cold", played.now)
    played.workers["cold"] = cold
    assert played.hang("cold", 0.99 * FIRST_TIMEOUTS * TIMEOUT) == []
    assert played.hang("cold", 1.01 * FIRST_TIMEOUTS * TIMEOUT) == [cold]
    assert played.members.of(session, played.now) is cold, "its session goes on"


def test_so_may_the_first_one_of_another_session() -> None:
    played = warm("a")
    played.members.join("a", played.now)
    assert not played.compute("a", 500.0)
    assert played.hang("a", 1.01 * TIMEOUT) == [played.workers["a"]], "which says nothing about the following ones"


def test_a_first_computation_is_compared_with_those_of_others() -> None:
    played = warm("slow", seconds=500.0)
    played.workers["new"] = played.members.join("new", played.now)[0]
    assert not played.compute("new", 4000.0)


@pytest.mark.parametrize("how", ["gradient", "newer parameters", "waits", "joins"])
def test_a_stalled_worker_is_back_with_its_first_progress(how: str) -> None:
    played = warm("a")
    played.hang("a", 100.0)
    assert played.members.stalled == {0}
    worker = played.workers["a"]
    match how:
        case "gradient":
            worker.pace.finish(7, 100.0, played.now)
        case "newer parameters":
            played.beat("a", 8, 0.1)
        case "waits":
            worker.pace.wait()
        case "joins":
            played.members.join("a", played.now)
            assert played.members.live == {0}
            return
    assert played.members.find_stalled(played.now) == [worker]
    assert played.members.live == {0}
    assert played.members.stalled == set()


def test_a_worker_that_was_taken_for_stalled_is_waited_for_twice_as_long_from_then_on() -> None:
    """If it has become slower that is soon enough, and if it hung its next hanging is noticed soon."""
    played, limit = warm("a"), TIMEOUT
    for _ in range(5):
        assert played.hang("a", 0.99 * limit) == []
        assert played.compute("a", 100 * limit)
        limit *= 2


def test_one_that_owes_nothing_is_never_stalled() -> None:
    played = Played("old")
    for version in range(3):
        played.send("old", version)
        played.workers["old"].pace.finish(version, None, played.now)
    assert not played.idle("old", 1e6)


@pytest.mark.parametrize("says_seconds", [True, False])
def test_one_that_has_parameters_and_sends_nothing_is_stalled_whatever_it_says(says_seconds: bool) -> None:
    """It hangs between two computations, or does not say that it computes."""
    played = warm("a") if says_seconds else Played("a")
    limit = TIMEOUT if says_seconds else FIRST_TIMEOUTS * TIMEOUT
    for version in range(3):
        played.send("a", version)
        assert not played.idle("a", 0.99 * limit)
        played.workers["a"].pace.finish(version, 0.1 if says_seconds else None, played.now)
    played.send("a", 3)
    assert played.idle("a", 1.01 * limit)
    assert played.idle("a", 1.0), "and stays so"
    played.send("a", 4)  # for others have gone on
    assert played.idle("a", 1.0)
    played.workers["a"].pace.finish(3, None, played.now)
    assert not played.idle("a", 0.9 * limit)
    assert played.idle("a", 0.2 * limit), "it has got the next parameters already"


def test_newer_parameters_on_their_way_are_no_progress_of_a_worker_that_owes_a_gradient() -> None:
    """One that hangs may not even read them."""
    played = warm("a")
    played.send("a", 3)
    assert played.idle("a", 1.01 * TIMEOUT)
    played.workers["a"].pace.send(4, played.now)  # for others have gone on
    assert played.idle("a", 1.0)


def test_the_way_of_parameters_is_not_counted_but_may_not_take_for_ever() -> None:
    played = warm("a")
    played.send("a", 0, seconds=0.9 * FIRST_TIMEOUTS * TIMEOUT)
    assert not played.idle("a", 0.9 * TIMEOUT)
    played.workers["a"].pace.finish(0, 0.1, played.now)
    played.workers["a"].pace.send(1, played.now)
    assert not played.idle("a", 0.9 * FIRST_TIMEOUTS * TIMEOUT)
    assert played.idle("a", 0.2 * FIRST_TIMEOUTS * TIMEOUT)


def test_parameters_that_are_replaced_on_their_way_are_not_owed() -> None:
    played, seconds = warm("a"), 0.9 * FIRST_TIMEOUTS * TIMEOUT
    for version in range(5):
        played.workers["a"].pace.send(version, played.now)
        assert not played.idle("a", seconds)


def test_a_worker_that_computes_with_older_parameters_owes_nothing_more() -> None:
    played = warm("slow", seconds=50.0)
    played.send("slow", 0)
    for version in range(1, 100):
        played.send("slow", version)
        assert not played.compute("slow", 50.0, version - 1)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_worker_that_lies_or_is_gone_changes_no_limit_of_most_others(leaves: bool) -> None:
    played = warm("liar", "a", "b")
    played.now = 1e5
    for _ in range(2):
        played.workers["liar"].pace.finish(0, 1e18, played.now)
    if leaves:
        played.members.leave(played.workers["liar"])
    played.workers["new"] = played.members.join("new", played.now)[0]
    played.now += 1.01 * FIRST_TIMEOUTS * TIMEOUT
    played.beat("new", 0, 1e18)
    assert played.members.find_stalled(played.now) == [played.workers["new"]]


@pytest.mark.parametrize("nonsense", [math.nan, -1.0, math.inf, 1e300])
def test_nonsense_about_seconds_changes_no_limit(nonsense: float) -> None:
    """Nothing takes longer than the session."""
    played = warm("a")
    played.workers["a"].pace.finish(0, nonsense, played.now)
    assert (played.workers["a"].pace.longest or 0) <= played.now
    played.beat("a", 5, nonsense)
    assert 0 <= (played.workers["a"].pace.seconds(played.now) or 0) <= played.now


@pytest.mark.parametrize("how", ["leaves", "times out"])
def test_a_stalled_worker_may_leave_or_time_out(how: str) -> None:
    played = warm("a", "b")
    played.hang("a", 100.0)
    played.workers["b"].heard = played.now
    if how == "leaves":
        played.members.leave(played.workers["a"])
    else:
        assert played.members.expire(played.now) == [played.workers["a"]]
    assert played.members.live == {1}
    assert played.members.stalled == set()
    assert played.members.find_stalled(played.now) == []


EVENTS = st.tuples(
    st.sampled_from(["join", "leave", "beat", "wait", "finish", "send", "sent", "hear", "expire", "find", "postpone"]),
    st.integers(0, 3),
    st.floats(0.0, 1000.0),
)


@given(st.lists(EVENTS, max_size=60))
def test_whatever_happens_a_worker_with_a_session_is_alive_or_stalled(events: list[tuple[str, int, float]]) -> None:
    members, now = Members(secrets.token_urlsafe, TIMEOUT), 0.0
    present: dict[int, Member] = {}
    for what, number, seconds in events:
        now += seconds / 10
        worker = present.get(number)
        if what == "join":
            joined, _ = members.join(f"worker-{number}", now)
            present[number] = joined
        elif what == "expire":
            late = {one.number for one in members.expire(now)}
            assert late == {one.number for one in present.values() if now - one.heard > TIMEOUT}
            present = {key: one for key, one in present.items() if one.number not in late}
        elif what == "find":
            members.find_stalled(now)
        elif what == "postpone":
            members.postpone(seconds, now)
        elif worker is not None:
            match what:
                case "leave":
                    members.leave(present.pop(number))
                case "beat":
                    worker.pace.compute(0, seconds, now)
                case "wait":
                    worker.pace.wait()
                case "finish":
                    worker.pace.finish(0, seconds, now)
                case "send":
                    worker.pace.send(int(seconds), now)
                case "sent":
                    worker.pace.sent(now)
                case "hear":
                    worker.heard = now
        assert members.live | members.stalled == {one.number for one in present.values()}
        assert not members.live & members.stalled


def test_a_server_that_stood_still_does_not_count_that_against_workers() -> None:
    played = warm("a")
    played.beat("a", 9, 1.0)
    played.workers["a"].heard = played.now
    played.now += 1000.0
    played.members.postpone(1000.0, played.now)
    assert played.members.expire(played.now) == played.members.find_stalled(played.now) == []
    played.now += 1.01 * TIMEOUT
    assert played.members.find_stalled(played.now) == played.members.expire(played.now) == [played.workers["a"]]
