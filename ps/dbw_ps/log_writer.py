"""Writes a training log in a thread, so that training never waits for a disk."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from dbw_ps.training_log import TrainingLog, encode
from dbw_runtime.disk_watch import DiskWatch

log = logging.getLogger(__name__)
MAX_WAITING_BYTES = 2**24  # of lines that wait in memory while the disk fails or hangs; later ones are dropped
RETRY_SECONDS = 1.0


class LogWriter:
    """Takes lines in an event loop. They wait in memory until they are in the file, which only its thread touches."""

    def __init__(self, file: TrainingLog, disk: DiskWatch) -> None:
        self._file, self._disk = file, disk
        self._waiting: deque[bytes] = deque()
        self._taken_bytes = self._written_bytes = 0  # the thread counts what it has written
        self._thread = ThreadPoolExecutor(1, "training log")
        self._is_queued = False  # whether the thread will look at what waits, but does not yet
        self._is_dropping = False
        self.dropped = 0

    @property
    def failures(self) -> int:
        """How often the file could not be written."""
        return self._file.failures

    def write(self, entry: Mapping[str, Any]) -> None:
        """Add a line, as soon as the disk takes it."""
        line = encode(entry)
        is_full = self._taken_bytes - self._written_bytes + len(line) > MAX_WAITING_BYTES
        if is_full and not self._is_dropping:
            log.error("lines of the training log are dropped: %d of them wait for the disk", len(self._waiting))
        self._is_dropping = is_full
        if is_full:
            self.dropped += 1
        else:
            self._taken_bytes += len(line)
            self._waiting.append(line)
        if not self._is_queued:
            self._is_queued = True
            self._in_thread(self._write_waiting)

    async def flush(self, seconds: float) -> bool:
        """Try for this long to make all lines last over a power failure; returns whether they do."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not await self._in_thread(lambda: self._write_waiting() and self._file.sync()):
                    await asyncio.sleep(RETRY_SECONDS)
                return True
        return False

    def close(self) -> None:
        """Close the file. What waits is lost."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._file.close()

    def _in_thread(self, work: Callable[[], bool]) -> "asyncio.Future[bool]":
        writing = asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._disk.watch("the training log", writing)
        return asyncio.shield(writing)  # the thread goes on, and is watched, when nobody waits for it any more

    def _write_waiting(self) -> bool:
        self._is_queued = False
        while self._waiting:
            if not self._file.write(self._waiting[0]):
                return False
            self._written_bytes += len(self._waiting.popleft())
        return True
