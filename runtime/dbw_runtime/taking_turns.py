"""Lets tasks that are ready go on one by one, so that the event loop looks for new calls and answers in between."""

import asyncio
from collections import deque

# The cycles of the event loop that gRPC needs to accept a call.
CYCLES_OF_A_CALL = 6


class TakingTurns:
    """Gives one task a turn in each cycle of the event loop, in the order in which they ask.

    gRPC accepts calls one after the other, and needs some cycles for each. If all streams that have a request went on
    in the same cycle, it would take as long as all their answers together, and new calls would wait for several such.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False  # whether somebody has had the turn of this cycle
        self._may_pause = True  # whether nobody has paused since the last turn
        self._pause = 0  # cycles to let go by before the next turn

    async def turn(self) -> None:
        """Wait for a turn."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._next)
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def pause(self) -> None:
        """Let a call that has just begun be served, and the next one be accepted, before the next turn."""
        if self._may_pause:
            self._pause, self._may_pause = CYCLES_OF_A_CALL, False

    def _next(self) -> None:
        loop = asyncio.get_running_loop()
        if self._pause and self._waiting:
            self._pause -= 1
            loop.call_soon(self._next)
            return
        self._may_pause = True
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its task may have been cancelled
                turn.set_result(None)
                loop.call_soon(self._next)
                return
        self._is_taken, self._pause = False, 0
