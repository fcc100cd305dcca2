"""Workers keep their numbers, have one session at a time, and time out when they are silent."""

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_ps.members import (
    REPLACED_SESSIONS,
    InvalidWorkerError,
    Members,
    NotOwnerError,
    SessionNotFoundError,
    SessionReplacedError,
    TooManyWorkersError,
)


def test_a_worker_keeps_its_number_whenever_it_joins() -> None:
    members = Members(secrets.token_urlsafe, timeout=10.0)
    numbers = [members.join(worker, 0.0)[0].number for worker in ("a", "b", "a", "c", "b")]
    assert numbers == [0, 1, 0, 2, 1]
    assert members.numbers == {"a": 0, "b": 1, "c": 2}


def test_numbers_outlive_a_restart_and_are_never_given_to_another() -> None:
    members = Members(secrets.token_urlsafe, 10.0, {"b": 4, "a": 1})
    assert members.live == set()
    assert [members.join(worker, 0.0)[0].number for worker in ("new", "a", "b")] == [5, 1, 4]
    assert members.live == {1, 4, 5}


def test_joining_again_ends_the_earlier_session() -> None:
    members = Members(secrets.token_urlsafe, 10.0)
    member, first = members.join("a", 0.0)
    _, second = members.join("a", 1.0)
    assert members.of(second, 1.0) is member
    with pytest.raises(SessionReplacedError, match="another process has joined as 'a'"):
        members.of(first, 1.0)


def test_the_last_replaced_sessions_are_remembered() -> None:
    members = Members(secrets.token_urlsafe, 10.0)
    sessions = [members.join("a", 0.0)[1] for _ in range(REPLACED_SESSIONS + 2)]
    for session in sessions[1:-1]:
        with pytest.raises(SessionReplacedError):
            members.of(session, 0.0)
    with pytest.raises(SessionNotFoundError):
        members.of(sessions[0], 0.0)


@given(st.text())
def test_other_sessions_are_not_known(session: str) -> None:
    members = Members(secrets.token_urlsafe, 10.0)
    members.join("a", 0.0)
    with pytest.raises(SessionNotFoundError, match="join again"):
        members.of(session, 0.0)


def test_a_session_does_not_follow_from_another() -> None:
    members, others = Members(secrets.token_urlsafe, 10.0), Members(secrets.token_urlsafe, 10.0)
    own, _, others_own = (members.join("own", 0.0)[1], members.join("victim", 0.0), others.join("own", 0.0)[1])
    guesses = ["0", "0-", own[:-1], f"{own}-1", own.replace("0-", "1-", 1), f"x{own}", others_own]
    for guess in guesses:
        with pytest.raises(SessionNotFoundError):
            members.of(guess, 0.0)


def test_an_id_belongs_to_the_identity_that_joined_first() -> None:
    members = Members(secrets.token_urlsafe, 10.0)
    member, session = members.join("a", 0.0, "alice")
    with pytest.raises(NotOwnerError, match="the worker id 'a' belongs to another identity; join with"):
        members.join("a", 1.0, "mallory")
    with pytest.raises(NotOwnerError):
        members.of(session, 1.0, "mallory")
    assert members.of(session, 1.0, "alice") is member
    assert members.join("b", 1.0, "alice")[0].number == 1, "an identity may have several workers"
    _, third = members.join("a", 1.0, "alice")
    with pytest.raises(NotOwnerError):
        members.of(session, 1.0, "mallory")
    with pytest.raises(SessionReplacedError):
        members.of(session, 1.0, "alice")
    assert members.of(third, 1.0, "alice") is member


def test_a_refused_join_changes_nothing() -> None:
    members = Members(secrets.token_urlsafe, 10.0, max_workers=1)
    member, session = members.join("a", 0.0, "alice")
    for id_, identity in (("a", "mallory"), ("b", "mallory")):
        with pytest.raises((NotOwnerError, TooManyWorkersError)):
            members.join(id_, 1.0, identity)
    assert members.of(session, 1.0, "alice") is member
    assert members.numbers == {"a": 0}


def test_owners_outlive_a_restart_and_ids_without_one_belong_to_the_next() -> None:
    before = Members(secrets.token_urlsafe, 10.0, {"old": 0})
    before.join("a", 0.0, "alice")
    members = Members(secrets.token_urlsafe, 10.0, before.numbers, before.identities)
    members.join("old", 0.0, "bob")
    for id_, stranger in (("a", "bob"), ("old", "alice")):
        with pytest.raises(NotOwnerError):
            members.join(id_, 0.0, stranger)
    assert members.join("a", 0.0, "alice")[0].number == 1


def test_where_authentication_is_turned_on_or_off_workers_keep_their_ids() -> None:
    """Without it everybody is nobody, and may say any id."""
    members = Members(secrets.token_urlsafe, 10.0, {"a": 0})
    for identity in ("", "alice"):
        members = Members(secrets.token_urlsafe, 10.0, members.numbers, members.identities)
        assert members.join("a", 0.0, identity)[0].number == 0
    members = Members(secrets.token_urlsafe, 10.0, members.numbers, members.identities)
    assert members.join("a", 0.0)[0].number == 0


def test_only_allowed_identities_join_and_others_have_no_claim_to_an_id() -> None:
    members = Members(secrets.token_urlsafe, 10.0, {"a": 0}, {"a": "renamed"}, allowed={"alice", "bob"})
    for identity in ("renamed", "mallory", ""):
        with pytest.raises(NotOwnerError, match=f"the identity '{identity}' may not join"):
            members.join("a", 0.0, identity)
    assert members.join("a", 0.0, "alice")[0].number == 0
    with pytest.raises(NotOwnerError, match="belongs to another"):
        members.join("a", 0.0, "bob")


def test_not_more_workers_than_allowed_ever_join() -> None:
    members = Members(secrets.token_urlsafe, 10.0, {"kept": 7}, max_workers=2)
    member = members.join("a", 0.0)[0]
    member.used = 1
    members.leave(member)
    with pytest.raises(TooManyWorkersError, match="2 workers have joined"):
        members.join("b", 0.0)
    assert [members.join(id_, 0.0)[0].number for id_ in ("a", "kept")] == [8, 7]


def test_where_there_is_no_room_ids_that_have_gone_and_delivered_nothing_are_forgotten() -> None:
    members = Members(secrets.token_urlsafe, 10.0, {"kept": 7}, max_workers=6)
    for outcome in ("used", "late", "lost"):
        setattr(members.join(outcome, 0.0, "alice")[0], outcome, 1)
    idle, session = members.join("idle", 0.0, "mallory")
    present = members.join("present", 5.0, "bob")[0]
    members.expire(10.1)
    assert members.join("new", 11.0, "bob")[0].number == 13
    assert list(members.numbers) == ["kept", "used", "late", "lost", "present", "new"]
    with pytest.raises(SessionNotFoundError):
        members.of(session, 11.0, "mallory")
    with pytest.raises(TooManyWorkersError):
        members.join("newer", 11.0, "bob")
    members.leave(present)
    assert members.join(idle.id, 11.0, "bob")[0].number == 14


def test_a_number_is_not_given_to_another_when_its_id_is_forgotten() -> None:
    members = Members(secrets.token_urlsafe, 10.0, max_workers=1)
    for number in range(3):
        member = members.join(f"id-{number}", 0.0)[0]
        assert member.number == number
        members.leave(member)


def test_ids_that_have_gone_and_delivered_nothing_are_not_kept_over_restarts() -> None:
    """They would fill up all places for good: who has delivered something is not known after a restart."""
    members = Members(secrets.token_urlsafe, 10.0, {"kept": 0}, {"kept": "alice"})
    gone, useful, _ = (members.join(id_, 0.0, "bob")[0] for id_ in ("gone", "useful", "present"))
    useful.used = 1
    for member in (gone, useful):
        members.leave(member)
    assert members.numbers == {"kept": 0, "useful": 2, "present": 3}
    assert members.identities == {"kept": "alice", "useful": "bob", "present": "bob"}
    assert members.join("gone", 1.0, "bob")[0].number == 1


def test_a_silent_worker_times_out() -> None:
    members = Members(secrets.token_urlsafe, 10.0)
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
    members = Members(secrets.token_urlsafe, 10.0)
    member, session = members.join("a", 0.0)
    members.leave(member)
    assert members.live == set()
    with pytest.raises(SessionNotFoundError):
        members.of(session, 0.0)


@pytest.mark.parametrize("worker_id", ["", " a", "a ", "a\n", "ä", "x" * 129])
def test_an_id_must_be_printable(worker_id: str) -> None:
    with pytest.raises(InvalidWorkerError, match="printable ASCII"):
        Members(secrets.token_urlsafe, 10.0).join(worker_id, 0.0)


@pytest.mark.parametrize("worker_id", ["a", "a b", "x" * 128, "pod-3/gpu:0"])
def test_such_ids_are_fine(worker_id: str) -> None:
    assert Members(secrets.token_urlsafe, 10.0).join(worker_id, 0.0)[0].id == worker_id


def test_one_whose_connection_breaks_times_out_soon_unless_a_message_comes() -> None:
    members = Members(secrets.token_urlsafe, 30.0)
    (dead, dead_session), (_, session) = members.join("dead", 0.0), members.join("alive", 0.0)
    for broken in (dead_session, session, "n-7-1"):
        members.suspect(broken, 10.0, seconds=2.0)
    members.of(session, 11.0)
    assert members.expire(12.0) == []
    assert members.expire(12.1) == [dead]
    assert members.expire(40.0) == []


def test_a_broken_connection_does_not_prolong_a_silence() -> None:
    members = Members(secrets.token_urlsafe, 1.0)
    member, session = members.join("a", 0.0)
    members.suspect(session, 0.5, seconds=2.0)
    assert members.expire(1.1) == [member]
