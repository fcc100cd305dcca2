"""When long gradients are received: one after the other, unless one takes far longer than usual.

Turns hold no clock: times are seconds on any clock that does not go back.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median_low

RECENT_GRADIENTS = 32  # of which the usual time is the median
# How often the usual time a gradient may take until the next turn begins beside it, and until it is broken off.
PASS_ON_FACTOR, BREAK_OFF_FACTOR = 4.0, 20.0
MIN_USUAL_SECONDS = 0.125  # on a fast network the hiccups of processes and networks are longer than what is usual


@dataclass(eq=False)
class Turn:
    """The time in which one gradient of a worker is received."""

    worker: int
    began: float | None = None


class Turns:
    """Gives `places` gradients a turn at a time, in the order in which they ask.

    One that takes far longer than usual while others wait is received beside them: at most `places` such, so that
    2 × `places` gradients are in memory. Each may take `patience` seconds, unless others wait for its place.
    """

    def __init__(self, places: int, patience: float) -> None:
        self._places, self._patience = places, patience
        self._leniency: dict[int, float] = {}  # factors of the limits of workers whose gradients were broken off
        self._waiting: deque[Turn] = deque()
        self._running: list[Turn] = []
        self._slow: list[Turn] = []  # beside those that run
        self._seconds: deque[float] = deque(maxlen=RECENT_GRADIENTS)

    def ask(self, worker: int) -> Turn:
        """Ask for a turn; `begin` tells when it begins."""
        turn = Turn(worker)
        self._waiting.append(turn)
        return turn

    def begin(self, now: float) -> list[Turn]:
        """Those whose turns begin now."""
        begun = []
        while self._waiting and self._has_place(now):
            turn = self._waiting.popleft()
            turn.began = now
            self._running.append(turn)
            begun.append(turn)
        return begun

    def _has_place(self, now: float) -> bool:
        if len(self._running) == self._places and self._passed_on_at <= now:
            self._slow.append(self._running.pop(0))
        return len(self._running) < self._places

    @property
    def _passed_on_at(self) -> float:
        """When the oldest turn that runs makes room for another."""
        began = self._running[0].began
        assert began is not None
        return began + PASS_ON_FACTOR * self._usual if len(self._slow) < self._places else math.inf

    @property
    def _usual(self) -> float:
        return max(median_low(self._seconds) if self._seconds else 0.0, MIN_USUAL_SECONDS)

    @property
    def wake_at(self) -> float:
        """When another turn may begin though none ends."""
        return self._passed_on_at if self._waiting and self._running else math.inf

    def ends_at(self, turn: Turn) -> float:
        """When a gradient is to be broken off. That changes with every turn that is asked for, begins or ends."""
        assert turn.began is not None
        seconds = BREAK_OFF_FACTOR * self._usual
        if not self._is_in_the_way(turn):
            seconds = max(seconds, self._patience)
        return turn.began + self._leniency.get(turn.worker, 1.0) * seconds

    def _is_in_the_way(self, turn: Turn) -> bool:
        """Whether others wait because a slow gradient keeps its place. Before any is complete, all may be as slow."""
        is_full = len(self._running) == len(self._slow) == self._places
        return is_full and bool(self._waiting) and bool(self._seconds) and turn in self._slow

    def broken_off(self, turn: Turn) -> None:
        """A gradient has taken too long. Perhaps all do by now: its worker gets twice the time, until one is complete.

        Only its worker, because several that never complete one would otherwise double each other's time.
        """
        self._leniency[turn.worker] = 2 * self._leniency.get(turn.worker, 1.0)

    def end(self, turn: Turn, now: float, is_complete: bool) -> None:
        """A gradient is complete, or not wanted any more."""
        for turns in (self._waiting, self._running, self._slow):
            if turn in turns:
                turns.remove(turn)
        if is_complete:
            assert turn.began is not None
            seconds = now - turn.began
            if seconds <= BREAK_OFF_FACTOR * self._usual:
                self._leniency.clear()
            self._seconds.append(seconds)
