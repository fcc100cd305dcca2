"""Long gradients come in one after the other, and no slow one keeps the others waiting."""

import math

from hypothesis import given
from hypothesis import strategies as st

from dbw_ps.turns import BREAK_OFF, MIN_TURN_SECONDS, PASS_ON, Turn, Turns

PATIENCE = 60.0


def receive(turns: Turns, seconds: float, now: float = 0.0) -> None:
    """Receive a gradient that takes this long."""
    turn = turns.ask()
    assert turns.begin(now) == [turn]
    turns.end(turn, now + seconds, is_complete=True)


def test_turns_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    turns = Turns(2, PATIENCE)
    first, second, third = (turns.ask() for _ in range(3))
    assert turns.begin(0.0) == [first, second]
    assert turns.begin(0.1) == []
    turns.end(second, 0.2, is_complete=True)
    assert turns.begin(0.2) == [third]


def test_who_does_not_wait_any_more_gets_no_turn() -> None:
    turns = Turns(1, PATIENCE)
    first, second, third = (turns.ask() for _ in range(3))
    turns.begin(0.0)
    turns.end(second, 0.1, is_complete=False)
    turns.end(first, 0.2, is_complete=True)
    assert turns.begin(0.2) == [third]


def test_a_gradient_that_takes_far_longer_than_usual_is_received_beside_the_next_ones() -> None:
    turns = Turns(1, PATIENCE)
    for i in range(3):
        receive(turns, 1.0, 10.0 * i)
    slow, *others = (turns.ask() for _ in range(4))
    assert turns.begin(100.0) == [slow]
    assert turns.wake_at == 100.0 + PASS_ON
    assert turns.begin(100.0 + PASS_ON - 0.01) == []
    for i, other in enumerate(others):
        now = 100.0 + PASS_ON + i
        assert turns.begin(now) == [other]
        turns.end(other, now + 1.0, is_complete=True)
    turns.end(slow, 150.0, is_complete=True)  # it was not broken off


def test_nobody_is_moved_aside_for_nobody() -> None:
    turns = Turns(1, PATIENCE)
    receive(turns, 1.0)
    turns.ask()
    turns.begin(10.0)
    assert turns.wake_at == math.inf
    assert turns.begin(1000.0) == []
    late = turns.ask()
    assert turns.begin(1000.0) == [late]


def test_beside_the_turns_there_are_as_many_places_and_no_more() -> None:
    turns = Turns(1, PATIENCE)
    receive(turns, 0.01)
    asked = [turns.ask() for _ in range(4)]
    assert turns.begin(10.0) == asked[:1]
    assert turns.begin(11.0) == asked[1:2]
    assert turns.wake_at == math.inf
    assert turns.begin(1000.0) == []
    turns.end(asked[0], 1000.0, is_complete=False)
    assert turns.begin(1000.0) == asked[2:3]


def test_how_long_a_gradient_may_take_depends_on_how_long_others_take() -> None:
    turns = Turns(1, PATIENCE)
    turn = turns.ask()
    turns.begin(5.0)
    assert turns.ends_at(turn) == 5.0 + PATIENCE
    turns.end(turn, 5.1, is_complete=True)
    turn = turns.ask()
    turns.begin(6.0)
    assert turns.ends_at(turn) == 6.0 + PATIENCE
    turns.end(turn, 6.0, is_complete=False)
    slow = Turns(1, PATIENCE)
    receive(slow, 100.0)
    turn = slow.ask()
    slow.begin(1000.0)
    assert slow.ends_at(turn) == 1000.0 + BREAK_OFF * 100.0


@given(st.integers(1, 3), st.floats(1.0, 1e4))
def test_those_who_never_complete_a_gradient_end_and_those_who_need_long_do_not(places: int, seconds: float) -> None:
    """Nobody knows yet how long a gradient takes, and so many dribble that they take every place."""
    turns, now = Turns(places, PATIENCE), 0.0
    running: dict[Turn, bool] = {}
    asked = {turns.ask(): True for _ in range(2 * places)} | {turns.ask(): False}  # whether it never ends
    while not turns._seconds:
        running |= {turn: asked.pop(turn) for turn in turns.begin(now)}
        ends = {turn: (turns.ends_at(turn), False) for turn in running}
        for turn in (turn for turn, dribbles in running.items() if not dribbles):
            assert turn.began is not None
            ends[turn] = min(ends[turn], (turn.began + seconds, True))
        turn, (now, is_complete) = min(ends.items(), key=lambda item: item[1])
        if turns.wake_at < now:
            now = turns.wake_at
            continue
        turns.end(turn, now, is_complete)
        asked[turns.ask()] = running.pop(turn)  # again
        assert now <= 20 * max(seconds, PATIENCE)


@given(st.lists(st.floats(0.01, 100.0), min_size=3, max_size=20), st.floats(1.0, 5.0))
def test_a_gradient_on_a_link_that_is_five_times_slower_is_never_broken_off(others: list[float], factor: float) -> None:
    turns = Turns(1, PATIENCE)
    now = 0.0
    for seconds in others:
        receive(turns, seconds, now)
        now += seconds
    turn = turns.ask()
    turns.begin(now)
    usual = sorted(others)[(len(others) - 1) // 2]
    assert now + factor * usual < turns.ends_at(turn)


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from(["ask", "complete", "break off", "wait"]), st.integers(0, 9), st.floats(0, 9)),
        max_size=60,
    ),
)
def test_memory_is_bounded_and_nobody_waits_for_a_free_place(places: int, events: list[tuple[str, int, float]]) -> None:
    turns, now = Turns(places, PATIENCE), 0.0
    waiting: list[Turn] = []
    received: list[Turn] = []
    for what, which, seconds in events:
        now += seconds
        if what == "ask":
            waiting.append(turns.ask())
        elif what in ("complete", "break off") and received:
            turns.end(received.pop(which % len(received)), now, is_complete=what == "complete")
        begun = turns.begin(now)
        assert begun == waiting[: len(begun)]
        del waiting[: len(begun)]
        received += begun
        assert len(received) <= 2 * places
        assert not waiting or len(received) >= places
        if waiting and len(received) < 2 * places:
            assert turns.wake_at > now  # when it will be somebody's turn, whoever dribbles
            usual = max(turns._seconds, default=0.0)
            assert turns.wake_at <= now + max(PASS_ON * usual, MIN_TURN_SECONDS)
