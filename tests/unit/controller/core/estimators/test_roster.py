"""Who is alive, where that is told and where it has to be found out."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_controller.core.errors import StateDamagedError, damaged_state
from dbw_controller.core.estimators.roster import Roster
from dbw_controller.core.reports import Arrivals, Membership
from dbw_controller.core.state import Workers, decode, encode


def of(*workers: int) -> Arrivals:
    return Arrivals(0, np.ones(len(workers)), workers=workers)


def test_the_numbers_that_are_told_are_those_of_the_workers() -> None:
    roster = Roster()
    assert roster.update(Membership(3, [7, 3, 5]), [of(1, 2)]) == (7, 3, 5)
    assert roster.update(Membership(2, [3, 9]), []) == (3, 9)
    assert roster.update(Membership(0, []), []) == ()


def test_nobody_is_known_until_an_arrival_has_a_number() -> None:
    roster = Roster()
    assert roster.update(Membership(3), []) == ()
    assert roster.update(Membership(3), [Arrivals(0, np.ones(3))]) == ()


def test_workers_that_were_not_heard_of_yet_have_negative_numbers() -> None:
    roster = Roster()
    assert roster.update(Membership(4), [of(7, 2)]) == (2, 7, -1, -2)
    assert roster.update(Membership(4), [of(2)]) == (2, 7, -1, -2)
    assert roster.update(Membership(4), [of(0), of(9, 2)]) == (0, 2, 7, 9)


def test_numbers_may_be_of_numpys_types() -> None:
    workers = Roster().update(Membership(2), [Arrivals(0, np.ones(2), workers=np.array([3, 1]))])
    assert workers == (1, 3)
    assert all(type(worker) is int for worker in workers)


def test_of_more_workers_than_are_alive_those_that_were_heard_of_last_are() -> None:
    roster = Roster()
    roster.update(Membership(3), [of(1, 2, 3)])
    roster.update(Membership(3), [of(1)])
    assert roster.update(Membership(3), [of(4)]) == (1, 3, 4)
    assert roster.update(Membership(2), [of(3)]) == (3, 4)
    assert roster.update(Membership(2), [of(1, 2, 5, 6)]) == (5, 6)


def test_if_there_are_more_those_that_are_known_stay() -> None:
    roster = Roster()
    roster.update(Membership(2), [of(1, 2)])
    assert roster.update(Membership(4), [of(2)]) == (1, 2, -1, -2)
    assert roster.update(Membership(4), [of(8)]) == (1, 2, 8, -1)


@pytest.mark.parametrize("gone", range(8))
@pytest.mark.parametrize("heard", [2, 4])
def test_who_has_been_replaced_is_found_out(gone: int, heard: int) -> None:
    """Worker 8 comes in place of another, and a few are heard of in each iteration."""
    roster, draw = Roster(), random.Random(gone)
    roster.update(Membership(8), [of(*range(8))])
    live = [worker for worker in range(9) if worker != gone]
    for _ in range(60):
        workers = roster.update(Membership(8), [of(*draw.sample(live, heard))])
        assert len(workers) == 8
    assert workers == tuple(live)


def test_what_was_told_is_known_where_it_is_told_no_longer() -> None:
    roster = Roster()
    roster.update(Membership(3, [7, 3, 5]), [])
    assert roster.update(Membership(3), [of(5)]) == (7, 3, 5)
    assert roster.update(Membership(3), [of(5, 8)]) == (3, 5, 8)


def memberships() -> st.SearchStrategy[Membership]:
    numbers = st.lists(st.integers(0, 9), unique=True, max_size=6)
    return st.integers(0, 6).map(Membership) | numbers.map(lambda workers: Membership(len(workers), workers))


heard = st.lists(st.lists(st.integers(0, 9), max_size=8).map(lambda workers: of(*workers)), max_size=3)


@given(st.lists(st.tuples(memberships(), heard), max_size=9))
def test_there_are_as_many_different_ones_as_are_alive_or_none(sequence: Sequence[tuple[Membership, Any]]) -> None:
    roster, copy = Roster(), Roster()
    for membership, arrivals in sequence:
        workers = roster.update(membership, arrivals)
        assert len(set(workers)) == len(workers)
        assert len(workers) in (0, membership.live_workers)
        copy.restore(roster.snapshot())
        assert copy.snapshot() == roster.snapshot() == list(workers)


def test_a_restored_roster_goes_on_as_it_was() -> None:
    roster, copy = Roster(), Roster()
    roster.update(Membership(4), [of(5, 1)])
    copy.restore(roster.snapshot())
    for each in (roster, copy):
        assert each.update(Membership(4), [of(1)]) == (1, 5, -1, -2)
        assert each.update(Membership(4), [of(7)]) == (1, 5, 7, -1)


@pytest.mark.parametrize("state", [None, 3, [1, 1], ["1"], [1.5], [-(10**9)], [2**40]])
def test_a_damaged_state_is_refused(state: object) -> None:
    with pytest.raises(StateDamagedError), damaged_state():
        Roster().restore(decode(encode(state), Workers))
