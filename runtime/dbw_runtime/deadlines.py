"""Who is overdue, where everybody has the same time for something."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")


class Deadlines(Generic[Key]):
    """Tells once who has not done something within some seconds. One timer serves all."""

    def __init__(self, seconds: float, overdue: Callable[[Key], object], clock: Callable[[], float]) -> None:
        self._seconds, self._overdue, self._now = seconds, overdue, clock
        self._until: dict[Key, float] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, key: Key) -> None:
        """Somebody is expected to do it from now on."""
        self._until[key] = self._now() + self._seconds
        if self._timer is None:
            self._set_timer()

    def end(self, key: Key) -> None:
        """It is done, or does not matter any more."""
        self._until.pop(key, None)

    @property
    def oldest(self) -> Key | None:
        """Who is expected to do it for the longest time."""
        return next(iter(self._until), None)

    def _set_timer(self) -> None:
        self._timer, now = None, self._now()
        while self._until:
            key, until = next(iter(self._until.items()))
            if until > now:
                self._timer = asyncio.get_running_loop().call_later(until - now, self._set_timer)
                return
            del self._until[key]
            self._overdue(key)
