"""When and how the snapshot of a job is written. Decisions never wait for the disk, whatever is wrong with it."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dbw_controller.core.errors import DiskFailedError
from dbw_controller.server.store import SnapshotStore
from dbw_runtime.disk_watch import DiskWatch
from dbw_runtime.durable import FolderError

log = logging.getLogger(__name__)
T = TypeVar("T")
# What has changed is saved after this time at the latest; a disk that fails gets some time to recover.
SAVE_SECONDS, RETRY_SECONDS = 10.0, 1.0
DISK_SECONDS = 2.0  # how long a request waits for what the disk is doing
MIN_WAIT = 0.01  # seconds; by less than a clock can tell apart, time does not go on


class Disk:
    """Where all jobs are saved, if there is a store. `clock` is monotonic."""

    def __init__(
        self, store: SnapshotStore | None, save_iterations: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.store, self.save_iterations, self.clock = store, save_iterations, clock
        self.failures = 0  # snapshots that could not be written
        self.watch = DiskWatch(clock)
        # One job is saved or deleted at a time: while the disk hangs, no other one's snapshot waits in memory.
        # Snapshots wait for each other first: a deletion, which somebody waits for, goes before all but one of them.
        self.turn, self.snapshots = asyncio.Lock(), asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "snapshots")  # a single one, so that files change in the order of events

    async def run(self, what: str, function: Callable[..., None], *arguments: object) -> None:
        """Do something with the store in its thread, which goes on with it if the caller stops waiting."""
        working = asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
        self.watch.watch(what, working)
        await unless_cancelled(working)

    async def unless_it_hangs(self, work: Coroutine[Any, Any, None], seconds: float) -> None:
        """Do something that needs the disk. It is cancelled, with a TimeoutError, once the disk hangs.

        That is when a single write or deletion takes more than these seconds; many may take longer together.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                if (remaining := seconds - self.watch.busy_seconds) <= 0:
                    raise TimeoutError(f"the disk takes more than {seconds:g} s")
                await asyncio.wait([task], timeout=max(remaining, MIN_WAIT))
        finally:
            task.cancel()
            await asyncio.wait([task])
        task.result()

    def close(self) -> None:
        """Let another process use the store."""
        self._thread.shutdown()
        if self.store is not None:
            self.store.close()


async def unless_cancelled(work: "asyncio.Future[T]") -> T:
    """Wait for work that goes on if the caller is cancelled. Then nobody is told how it ends."""
    work.add_done_callback(lambda done: done.cancelled() or done.exception())  # otherwise asyncio complains then
    try:
        return await asyncio.shield(work)
    finally:
        del work  # otherwise its failure, which knows this frame, would keep itself in memory, and what it is about


class Saver:
    """Keeps the snapshot of one job up to date. `state` returns what to write, None if the job was deleted."""

    def __init__(self, name: str, disk: Disk, state: Callable[[], Awaitable[bytes | None]]) -> None:
        self._name, self._disk, self._state = name, disk, state
        self.unsaved_iterations = 0
        self._changed = False  # whether anything has changed since the last snapshot, which may be no iteration
        self._saved = -math.inf  # when the last snapshot was written
        self._timer: asyncio.TimerHandle | None = None  # begins the next one
        self._retries = False  # whether the last one failed
        self._saving: asyncio.Task[None] | None = None

    @property
    def is_unsaved(self) -> bool:
        """Whether a crash would lose anything."""
        return self._changed or self._saving is not None

    def changed(self, iterations: int) -> None:
        """Take note that the job has changed, by some iterations, and save it when that is due."""
        if self._disk.store is None:
            return
        self.unsaved_iterations += iterations
        self._changed = True
        self._schedule()

    def _schedule(self) -> None:
        if self._saving is not None or self._retries:
            return
        seconds = self._saved + SAVE_SECONDS - self._disk.clock()
        if seconds <= 0 or 2 * self.unsaved_iterations >= self._disk.save_iterations:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> "asyncio.Task[None]":
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._saving is None:
            self._saving = asyncio.ensure_future(self._save())
        return self._saving

    async def save(self) -> None:
        """Save the job as it is now. That takes as long as the disk does, and may fail: see `is_unsaved`."""
        if self._saving is not None:
            await asyncio.shield(self._saving)  # which may be older
        if self.is_unsaved:
            await asyncio.shield(self._begin())

    async def delete(self, require: Callable[[], object], end: Callable[[], Awaitable[object]]) -> None:
        """Delete the snapshot, and then `end` the job. If either fails, or the disk hangs, the job is saved again.

        `require` raises if the snapshot must not be deleted when it is this job's turn.
        """
        try:
            await self._disk.unless_it_hangs(self._delete(require, end), DISK_SECONDS)
        except (OSError, FolderError) as error:
            raise DiskFailedError(f"the snapshot of {self._name!r} cannot be deleted ({error})") from error

    async def _delete(self, require: Callable[[], object], end: Callable[[], Awaitable[object]]) -> None:
        store = self._disk.store
        async with self._disk.turn:
            require()
            try:
                if store is not None:
                    await self._disk.run(f"the deletion of {self._name}", store.delete, self._name)
                await end()
            except (Exception, asyncio.CancelledError):  # it is cancelled if the disk hangs
                if store is not None:
                    self._changed = True  # the snapshot may have been deleted, or be deleted yet
                    self._begin()
                raise
            self._changed = False

    async def _save(self) -> None:
        try:
            async with self._disk.snapshots, self._disk.turn:
                await self._write()
        except Exception as error:
            self._disk.failures += 1
            self._changed = self._retries = True
            self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._begin)
            log.error("its snapshot cannot be written: %s", error, exc_info=error, extra={"job": self._name})
        else:
            self._retries = False
        finally:
            self._saving = None
            if self._changed:
                self._schedule()

    async def _write(self) -> None:
        store = self._disk.store
        iterations, self._changed = self.unsaved_iterations, False
        if store is None or (state := await self._state()) is None:
            return
        await self._disk.run(f"the snapshot of {self._name}", store.write, self._name, state)
        self.unsaved_iterations -= iterations
        self._saved = self._disk.clock()
