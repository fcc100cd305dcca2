"""Those who watch a job: each gets every iteration that it is fast enough for."""

import asyncio
from collections import deque
from collections.abc import Callable

from dbw.v1.controller_pb2 import WatchJobResponse

# Iterations that may wait for a watcher; after that the oldest are left out.
LONGEST_QUEUE = 64


class Watcher:
    """One who watches."""

    def __init__(self, include_estimates: bool) -> None:
        self.include_estimates = include_estimates
        self._waiting: deque[WatchJobResponse] = deque()
        self._skipped = 0  # iterations that were left out before the first one that waits
        self._news = asyncio.Event()
        self._ended = False

    def tell(self, response: WatchJobResponse) -> None:
        """Queue an iteration."""
        self._waiting.append(response)
        if len(self._waiting) > LONGEST_QUEUE:
            self._waiting.popleft()
            self._skipped += 1
        self._news.set()

    def end(self) -> None:
        """Let the watcher go once it has seen what is queued."""
        self._ended = True
        self._news.set()

    async def next(self) -> WatchJobResponse | None:
        """The next iteration; None after the last one."""
        while not self._waiting:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        response, skipped = self._waiting.popleft(), self._skipped
        self._skipped = 0
        if not skipped:
            return response
        own = WatchJobResponse(skipped_iterations=skipped)  # others are sent the same response
        own.MergeFrom(response)
        return own


class Watchers:
    """All who watch a job."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, include_estimates: bool) -> Watcher:
        """Begin to watch."""
        watcher = Watcher(include_estimates)
        self._watchers.add(watcher)
        return watcher

    def remove(self, watcher: Watcher) -> None:
        """Stop watching."""
        self._watchers.discard(watcher)

    def tell(self, response: Callable[[bool], WatchJobResponse]) -> None:
        """Tell all of them, with estimates or without."""
        responses = {
            include: response(include) for include in {watcher.include_estimates for watcher in self._watchers}
        }
        for watcher in self._watchers:
            watcher.tell(responses[watcher.include_estimates])

    def end(self) -> None:
        """End all of them once they have seen what is queued."""
        for watcher in self._watchers:
            watcher.end()
