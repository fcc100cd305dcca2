"""Those who watch a job: each gets every iteration that it is fast enough for."""

import asyncio
from collections.abc import Callable, Collection

from dbw.v1.controller_pb2 import WatchJobResponse

# Iterations that may wait for a watcher; after that the oldest are left out.
LONGEST_QUEUE = 64


class Watcher:
    """One who watches."""

    def __init__(self, include_estimates: bool) -> None:
        self.include_estimates = include_estimates
        self._waiting: asyncio.Queue[WatchJobResponse | None] = asyncio.Queue()  # None after the last one
        self._skipped = 0  # iterations that were left out before the first one that waits

    def tell(self, response: WatchJobResponse) -> None:
        """Queue an iteration."""
        self._waiting.put_nowait(response)
        if self._waiting.qsize() > LONGEST_QUEUE:
            self._waiting.get_nowait()
            self._skipped += 1

    def end(self) -> None:
        """Let the watcher go once it has seen what is queued."""
        self._waiting.put_nowait(None)

    async def next(self) -> WatchJobResponse | None:
        """The next iteration; None after the last one."""
        response, skipped, self._skipped = await self._waiting.get(), self._skipped, 0
        if response is None or not skipped:
            return response
        own = WatchJobResponse(skipped_iterations=skipped)  # others are sent the same response
        own.MergeFrom(response)
        return own


def tell_all(watchers: Collection[Watcher], response: Callable[[bool], WatchJobResponse]) -> None:
    """Queue an iteration for all of them, with estimates or without."""
    responses = {include: response(include) for include in {watcher.include_estimates for watcher in watchers}}
    for watcher in watchers:
        watcher.tell(responses[watcher.include_estimates])
