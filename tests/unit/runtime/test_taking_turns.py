"""Streams take turns."""

import asyncio
from itertools import pairwise

from dbw_runtime.taking_turns import CYCLES_OF_A_CALL, TakingTurns


class Cycles:
    """Counts the cycles of the event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._next()

    def _next(self) -> None:
        self.count += 1
        asyncio.get_running_loop().call_soon(self._next)


def run_in_turn(tasks: int, pauses: bool = False, cancelled: int | None = None) -> list[tuple[int, int]]:
    """In which cycle which task goes on."""

    async def run() -> list[tuple[int, int]]:
        turns, cycles, went_on = TakingTurns(), Cycles(), list[tuple[int, int]]()

        async def task(number: int) -> None:
            await turns.turn()
            went_on.append((number, cycles.count))
            if pauses:
                turns.pause()
                turns.pause()

        all_tasks = [asyncio.ensure_future(task(number)) for number in range(tasks)]
        await asyncio.sleep(0)
        if cancelled is not None:
            all_tasks[cancelled].cancel()
        await asyncio.wait(all_tasks)
        return went_on

    return asyncio.run(run())


def test_all_go_on_in_the_order_in_which_they_ask_one_in_a_cycle() -> None:
    went_on = run_in_turn(20)
    assert [number for number, _ in went_on] == list(range(20))
    cycles = [cycle for _, cycle in went_on]
    assert len(set(cycles)) == 20
    assert cycles[-1] - cycles[1] == 18, "some cycles were not used"


def test_a_task_that_is_alone_does_not_wait() -> None:
    async def run() -> None:
        turns, cycles = TakingTurns(), Cycles()
        for _ in range(3):
            before = cycles.count
            await turns.turn()
            assert cycles.count == before
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(run())


def test_one_that_is_cancelled_does_not_keep_the_others_waiting() -> None:
    assert [number for number, _ in run_in_turn(5, cancelled=2)] == [0, 1, 3, 4]


def test_a_call_makes_the_next_turn_wait_and_many_calls_do_not_stop_turns() -> None:
    cycles = [cycle for _, cycle in run_in_turn(4, pauses=True)]
    gaps = [b - a for a, b in pairwise(cycles)]
    assert all(CYCLES_OF_A_CALL <= gap <= 2 * CYCLES_OF_A_CALL for gap in gaps[1:])
