"""Notices a disk that hangs, such as that of a network file system whose server is away."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)
HANG_SECONDS = 10.0  # a write that takes longer than this is logged, and does not keep a server from stopping


class DiskWatch:
    """Knows how long the writes that are under way have taken. They are done in threads, and begun in an event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}  # when each write began, by what is written
        self._writes: dict[str, asyncio.Future[Any]] = {}

    @property
    def busy_seconds(self) -> float:
        """How long the oldest write under way has taken; 0 if there is none. Any thread may ask."""
        return max((self._clock() - since for since in tuple(self._since.values())), default=0.0)

    def watch(self, what: str, writing: "asyncio.Future[Any]") -> None:
        """Watch a write until it is done. It begins when an earlier one of the same kind is done, in the same thread.

        A cancelled future counts as done, though its thread goes on: give one that nobody cancels.
        """
        if what in self._writes:
            self._writes[what].add_done_callback(lambda _: None if writing.done() else self.watch(what, writing))
            return
        self._since[what], self._writes[what] = self._clock(), writing
        warning = asyncio.get_running_loop().call_later(
            HANG_SECONDS, log.warning, "the disk hangs: %s has taken more than %g s", what, HANG_SECONDS
        )

        def done(_: "asyncio.Future[Any]") -> None:
            warning.cancel()
            del self._since[what], self._writes[what]

        writing.add_done_callback(done)
