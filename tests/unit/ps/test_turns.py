"""Long gradients come in one after the other, and no slow one keeps the others waiting."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_ps.rounds import MAX_LOST_IN_A_ROW
from dbw_ps.turns import BREAK_OFF_FACTOR, MIN_USUAL_SECONDS, PASS_ON_FACTOR, Turn, Turns

PATIENCE, WORKER = 60.0, 0


def receive(turns: Turns, seconds: float, now: float = 0.0) -> None:
    """Receive a gradient that takes this long."""
    turn = turns.ask(WORKER)
    assert turns.begin(now) == [turn]
    turns.end(turn, now + seconds, is_complete=True)


def test_turns_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    turns = Turns(2, PATIENCE)
    first, second, third = (turns.ask(worker) for worker in range(3))
    assert turns.begin(0.0) == [first, second]
    assert turns.begin(0.1) == []
    turns.end(second, 0.2, is_complete=True)
    assert turns.begin(0.2) == [third]


def test_who_does_not_wait_any_more_gets_no_turn() -> None:
    turns = Turns(1, PATIENCE)
    first, second, third = (turns.ask(worker) for worker in range(3))
    turns.begin(0.0)
    turns.end(second, 0.1, is_complete=False)
    turns.end(first, 0.2, is_complete=True)
    assert turns.begin(0.2) == [third]


def test_a_gradient_that_takes_far_longer_than_usual_is_received_beside_the_next_ones() -> None:
    turns = Turns(1, PATIENCE)
    for i in range(3):
        receive(turns, 1.0, 10.0 * i)
    slow, *others = (turns.ask(worker) for worker in range(4))
    assert turns.begin(100.0) == [slow]
    assert turns.wake_at == 100.0 + PASS_ON_FACTOR
    assert turns.begin(100.0 + PASS_ON_FACTOR - 0.01) == []
    for i, other in enumerate(others):
        now = 100.0 + PASS_ON_FACTOR + i
        assert turns.begin(now) == [other]
        turns.end(other, now + 1.0, is_complete=True)
    turns.end(slow, 150.0, is_complete=True)  # it was not broken off


def test_nobody_is_moved_aside_for_nobody() -> None:
    turns = Turns(1, PATIENCE)
    receive(turns, 1.0)
    turns.ask(WORKER)
    turns.begin(10.0)
    assert turns.wake_at == math.inf
    assert turns.begin(1000.0) == []
    late = turns.ask(WORKER)
    assert turns.begin(1000.0) == [late]


def test_beside_the_turns_there_are_as_many_places_and_no_more() -> None:
    turns = Turns(1, PATIENCE)
    receive(turns, 0.01)
    asked = [turns.ask(worker) for worker in range(4)]
    assert turns.begin(10.0) == asked[:1]
    assert turns.begin(11.0) == asked[1:2]
    assert turns.wake_at == math.inf
    assert turns.begin(1000.0) == []
    turns.end(asked[0], 1000.0, is_complete=False)
    assert turns.begin(1000.0) == asked[2:3]


def test_how_long_a_gradient_may_take_depends_on_how_long_others_take() -> None:
    turns = Turns(1, PATIENCE)
    turn = turns.ask(WORKER)
    turns.begin(5.0)
    assert turns.ends_at(turn) == 5.0 + PATIENCE
    turns.end(turn, 5.1, is_complete=True)
    turn = turns.ask(WORKER)
    turns.begin(6.0)
    assert turns.ends_at(turn) == 6.0 + PATIENCE
    turns.end(turn, 6.0, is_complete=False)
    slow = Turns(1, PATIENCE)
    receive(slow, 100.0)
    turn = slow.ask(WORKER)
    slow.begin(1000.0)
    assert slow.ends_at(turn) == 1000.0 + BREAK_OFF_FACTOR * 100.0


@pytest.mark.parametrize("places", [1, 2, 3])
def test_slow_gradients_that_take_every_place_are_broken_off_as_soon_as_they_keep_others_waiting(places: int) -> None:
    turns = Turns(places, PATIENCE)
    receive(turns, 1.0)
    slow, now = [turns.ask(worker) for worker in range(2 * places)], 100.0
    assert turns.begin(now) == slow[:places]
    now += PASS_ON_FACTOR
    assert turns.begin(now) == slow[places:]
    assert {turns.ends_at(turn) for turn in slow} == {100.0 + PATIENCE, now + PATIENCE}, "they are in nobody's way"
    other = turns.ask(2 * places)
    assert [turns.ends_at(turn) for turn in slow[:places]] == places * [100.0 + BREAK_OFF_FACTOR]
    assert turns.begin(now) == []
    now = 100.0 + BREAK_OFF_FACTOR
    turns.broken_off(slow[0])
    turns.end(slow[0], now, is_complete=False)
    assert turns.begin(now) == [other]


def test_a_hiccup_on_a_fast_network_is_not_the_end_of_a_gradient() -> None:
    turns = Turns(1, PATIENCE)
    receive(turns, 0.001)
    first, second, _ = (turns.ask(worker) for worker in range(3))
    turns.begin(0.0)
    turns.begin(PASS_ON_FACTOR * MIN_USUAL_SECONDS)
    assert turns.ends_at(first) == BREAK_OFF_FACTOR * MIN_USUAL_SECONDS
    assert turns.ends_at(second) >= PATIENCE


@given(st.integers(1, 3), st.floats(0.01, 10.0), st.floats(1.0, 1e4), st.booleans())
def test_training_goes_on_after_all_links_have_become_slower(
    places: int, before: float, seconds: float, others_wait: bool
) -> None:
    turns, now, complete, broken_off = Turns(places, PATIENCE), 0.0, 0, 0
    receive(turns, before)
    running: list[Turn] = []
    asked = [turns.ask(worker) for worker in range(2 * places + others_wait)]
    while complete < 50:
        begun = turns.begin(now)
        running, asked = running + begun, [turn for turn in asked if turn not in begun]
        ends = {turn: min((turns.ends_at(turn), False), ((turn.began or 0.0) + seconds, True)) for turn in running}
        turn, (at, is_complete) = min(ends.items(), key=lambda item: item[1])
        if turns.wake_at < at:
            now = max(turns.wake_at, now)
            continue
        now = max(at, now)
        complete += is_complete
        if not is_complete:
            turns.broken_off(turn)
            broken_off += 1
        turns.end(turn, now, is_complete)
        running.remove(turn)
        asked.append(turns.ask(turn.worker))
    assert broken_off <= 8 * places * math.log2(2 + seconds)


@pytest.mark.parametrize("dribblers", [1, 2, 5, 16])
def test_many_who_never_complete_a_gradient_keep_the_others_waiting_hardly_longer_than_one(dribblers: int) -> None:
    """All others have sent theirs, so that nobody shows how long a gradient takes."""
    turns, now = Turns(1, PATIENCE), 0.0
    receive(turns, 0.1)
    attempts = dict.fromkeys(range(dribblers), 0)
    running: list[Turn] = []
    for worker in attempts:
        turns.ask(worker)
    while running := running + turns.begin(now):
        turn = min(running, key=turns.ends_at)
        now = min(turns.ends_at(turn), turns.wake_at)
        if now < turns.wake_at:
            running.remove(turn)
            turns.broken_off(turn)
            turns.end(turn, now, is_complete=False)
            attempts[turn.worker] += 1
            if attempts[turn.worker] < MAX_LOST_IN_A_ROW:  # then nobody waits for this worker
                turns.ask(turn.worker)
    whole = PATIENCE * (2**MAX_LOST_IN_A_ROW - 1)
    assert now < 2 * whole


@given(st.integers(1, 3), st.floats(1.0, 1e4))
def test_those_who_never_complete_a_gradient_end_and_those_who_need_long_do_not(places: int, seconds: float) -> None:
    """Nobody knows yet how long a gradient takes, and so many dribble that they take every place."""
    turns, now = Turns(places, PATIENCE), 0.0
    running: dict[Turn, bool] = {}
    dribbles = {turns.ask(worker): True for worker in range(2 * places)}
    asked = dribbles | {turns.ask(2 * places): False}  # whether it never ends
    while not turns._seconds:
        running |= {turn: asked.pop(turn) for turn in turns.begin(now)}
        ends = {turn: (turns.ends_at(turn), False) for turn in running}
        for turn in (turn for turn, never_ends in running.items() if not never_ends):
            assert turn.began is not None
            ends[turn] = min(ends[turn], (turn.began + seconds, True))
        turn, (now, is_complete) = min(ends.items(), key=lambda item: item[1])
        if turns.wake_at < now:
            now = turns.wake_at
            continue
        if not is_complete:
            turns.broken_off(turn)
        turns.end(turn, now, is_complete)
        asked[turns.ask(turn.worker)] = running.pop(turn)  # again
        assert now <= 20 * max(seconds, PATIENCE)


@given(st.lists(st.floats(0.01, 100.0), min_size=3, max_size=20), st.floats(1.0, 5.0))
def test_a_gradient_on_a_link_that_is_five_times_slower_is_never_broken_off(others: list[float], factor: float) -> None:
    turns = Turns(1, PATIENCE)
    now = 0.0
    for seconds in others:
        receive(turns, seconds, now)
        now += seconds
    turn = turns.ask(WORKER)
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
            waiting.append(turns.ask(which))
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
            assert turns.wake_at <= now + PASS_ON_FACTOR * max(usual, MIN_USUAL_SECONDS)
