"""Work that takes long, such as a diagnosis or a state: a little at a time, so that decisions do not wait for it.

Threads share one interpreter: each that computes makes the event loop wait for its turn.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dbw_controller.core.errors import LimitReachedError
from dbw_controller.server.saver import unless_cancelled

T = TypeVar("T")
# How much is done at a time, one piece for each identity, and how much more each identity may have waiting.
AT_A_TIME, MAX_WAITING = 2, 64


class HeavyWork:
    """Does one thing at a time for each identity, and few in all."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_A_TIME)
        self._identities: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._pending: Counter[str] = Counter()  # by identity: what is being done, or waits

    async def run(self, identity: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do something when it is its turn. A caller that goes away while it is being done does not end it."""
        if self._pending[identity] > MAX_WAITING:
            text = f"{MAX_WAITING} diagnoses, exports and imports of this identity wait already; wait for some"
            raise LimitReachedError("heavy_work", text)
        self._pending[identity] += 1
        try:
            await self._identities[identity].acquire()
        except BaseException:
            self._forget(identity)
            raise
        try:
            await self._turns.acquire()
        except BaseException:
            self._release(identity)
            raise
        return await unless_cancelled(asyncio.ensure_future(self._work(identity, work)))

    async def _work(self, identity: str, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        finally:
            self._turns.release()
            self._release(identity)

    def _release(self, identity: str) -> None:
        self._identities[identity].release()
        self._forget(identity)

    def _forget(self, identity: str) -> None:
        self._pending[identity] -= 1
        if not self._pending[identity]:
            del self._pending[identity], self._identities[identity]
