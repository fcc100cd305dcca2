"""Workers keep their numbers, have one session at a time, and time out when they are silent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_ps.members import InvalidWorkerError, Members, SessionNotFoundError, SessionReplacedError


def test_a_worker_keeps_its_number_whenever_it_joins() -> None:
    members = Members("n", timeout=10.0)
    numbers = [members.join(worker, 0.0)[0].number for worker in ("a", "b", "a", "c", "b")]
    assert numbers == [0, 1, 0, 2, 1]
    assert members.numbers == {"a": 0, "b": 1, "c": 2}


def test_numbers_outlive_a_restart_and_are_never_given_to_another() -> None:
    members = Members("n", 10.0, {"b": 4, "a": 1})
    assert members.live == set()
    assert [members.join(worker, 0.0)[0].number for worker in ("new", "a", "b")] == [5, 1, 4]
    assert members.live == {1, 4, 5}


def test_joining_again_ends_the_earlier_session() -> None:
    members = Members("n", 10.0)
    member, first = members.join("a", 0.0)
    _, second = members.join("a", 1.0)
    assert members.of(second, 1.0) is member
    with pytest.raises(SessionReplacedError, match="another process has joined as 'a'"):
        members.of(first, 1.0)


@given(st.text())
def test_other_sessions_are_not_known(session: str) -> None:
    members = Members("n", 10.0)
    members.join("a", 0.0)
    if session != "n-0-1":
        with pytest.raises((SessionNotFoundError, SessionReplacedError)):
            members.of(session, 0.0)


@pytest.mark.parametrize("session", ["", "n", "n-0", "n-1-1", "other-0-1", "n--1", "n-0-x", "n-0-1-1"])
def test_such_a_session_is_not_known(session: str) -> None:
    members = Members("n", 10.0)
    members.join("a", 0.0)
    with pytest.raises(SessionNotFoundError, match="join again"):
        members.of(session, 0.0)


def test_a_silent_worker_times_out() -> None:
    members = Members("n", 10.0)
    (silent, lost), (_, session) = members.join("silent", 0.0), members.join("other", 0.0)
    members.of(session, 8.0)
    assert members.expire(10.0) == []
    assert members.expire(10.1) == [silent]
    assert members.expire(10.1) == []
    assert members.live == {1}
    with pytest.raises(SessionNotFoundError):
        members.of(lost, 11.0)
    members.join("silent", 12.0)
    assert members.live == {0, 1}


def test_one_that_left_has_no_session() -> None:
    members = Members("n", 10.0)
    member, session = members.join("a", 0.0)
    members.leave(member)
    assert members.live == set()
    with pytest.raises(SessionNotFoundError):
        members.of(session, 0.0)


@pytest.mark.parametrize("worker_id", ["", " a", "a ", "a\n", "ä", "x" * 129])
def test_an_id_must_be_printable(worker_id: str) -> None:
    with pytest.raises(InvalidWorkerError, match="printable ASCII"):
        Members("n", 10.0).join(worker_id, 0.0)


@pytest.mark.parametrize("worker_id", ["a", "a b", "x" * 128, "pod-3/gpu:0"])
def test_such_ids_are_fine(worker_id: str) -> None:
    assert Members("n", 10.0).join(worker_id, 0.0)[0].id == worker_id


def test_one_whose_connection_breaks_times_out_soon_unless_a_message_comes() -> None:
    members = Members("n", 30.0)
    (dead, dead_session), (_, session) = members.join("dead", 0.0), members.join("alive", 0.0)
    for broken in (dead_session, session, "n-7-1"):
        members.suspect(broken, 10.0, seconds=2.0)
    members.of(session, 11.0)
    assert members.expire(12.0) == []
    assert members.expire(12.1) == [dead]
    assert members.expire(40.0) == []


def test_a_broken_connection_does_not_prolong_a_silence() -> None:
    members = Members("n", 1.0)
    member, session = members.join("a", 0.0)
    members.suspect(session, 0.5, seconds=2.0)
    assert members.expire(1.1) == [member]
