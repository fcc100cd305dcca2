"""When and how the snapshot of a job is written. Decisions go on whatever is wrong with the disk."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from dbw_controller.server.store import SnapshotStore

log = logging.getLogger(__name__)
# Jobs with slow iterations are saved after this time; a disk that fails gets some time to recover.
SAVE_SECONDS, RETRY_SECONDS = 10.0, 1.0


class Disk:
    """Where all jobs are saved, if there is a store, and how many iterations of a job a crash may lose."""

    def __init__(
        self, store: SnapshotStore | None, save_iterations: int, clock: Callable[[], float] = time.time
    ) -> None:
        self.store, self.save_iterations, self.clock = store, save_iterations, clock
        self.failures = 0  # snapshots that could not be written
        self._thread = ThreadPoolExecutor(1, "snapshots")  # a single one, so that files change in the order of events

    async def run(self, function: Callable[..., None], *arguments: object) -> None:
        """Do something with the store in its thread."""
        await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def close(self) -> None:
        """Let another process use the store."""
        self._thread.shutdown()
        if self.store is not None:
            self.store.close()


class Saver:
    """Keeps the snapshot of one job up to date. `snapshot` returns its state, None if the job was deleted."""

    def __init__(self, name: str, disk: Disk, snapshot: Callable[[], Awaitable[bytes | None]]) -> None:
        self._name, self._disk, self._snapshot = name, disk, snapshot
        self.unsaved_iterations = 0
        self._changed = False  # whether anything has changed since the last snapshot, which may be no iteration
        self._saved = self._retry = 0.0  # when the last snapshot was written, and when to try again after a failure
        self._saving: asyncio.Task[None] | None = None

    def changed(self, iterations: int) -> None:
        """Take note that the job has changed, by some iterations, and save it if that is due."""
        if self._disk.store is None:
            return
        self.unsaved_iterations += iterations
        self._changed = True
        now = self._disk.clock()
        due = 2 * self.unsaved_iterations >= self._disk.save_iterations or now - self._saved > SAVE_SECONDS
        if due and self._saving is None and now > self._retry:
            self._saving = asyncio.ensure_future(self._save(self._disk.store))

    def must_wait(self) -> "asyncio.Task[None] | None":
        """The snapshot that is being written, if a crash could lose too much before it is there."""
        return self._saving if self.unsaved_iterations >= self._disk.save_iterations else None

    async def save(self) -> None:
        """Save the job as it is now."""
        if self._saving is not None:
            await asyncio.shield(self._saving)
        if self._changed and self._disk.store is not None:
            self._saving = asyncio.ensure_future(self._save(self._disk.store))
            await asyncio.shield(self._saving)

    async def delete(self) -> None:
        """Delete the snapshot, after what is being written."""
        if self._disk.store is not None:
            await self._disk.run(self._disk.store.delete, self._name)

    async def _save(self, store: SnapshotStore) -> None:
        try:
            iterations, self._changed = self.unsaved_iterations, False
            state = await self._snapshot()
            if state is not None:
                await self._disk.run(store.write, self._name, state)
            self.unsaved_iterations -= iterations
            self._saved = self._disk.clock()
        except Exception as error:
            self._disk.failures += 1
            self._changed, self._retry = True, self._disk.clock() + RETRY_SECONDS
            log.error("its snapshot cannot be written: %s", error, exc_info=error, extra={"job": self._name})
        finally:
            self._saving = None
