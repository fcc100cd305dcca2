"""The jobs of a controller: who owns them, and where they are kept."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dbw_controller.contract import NAME, NAME_RULE
from dbw_controller.core.errors import InvalidValueError, JobError, JobNotFoundError, LimitReachedError, NotOwnerError
from dbw_controller.core.estimators.durations import Solver
from dbw_controller.core.job import Job
from dbw_controller.core.reports import Membership
from dbw_controller.core.spec import JobSpec
from dbw_controller.server.served_job import Record
from dbw_controller.server.store import SnapshotStore

log = logging.getLogger(__name__)
# Jobs with slow iterations are saved by the clock; a disk that fails is given some time.
SAVE_SECONDS, RETRY_SECONDS = 10.0, 1.0


class Jobs:
    """All jobs of a controller, and their snapshots where there is a store."""

    def __init__(
        self, store: SnapshotStore | None, max_jobs: int, save_iterations: int, solver: Solver = Solver.EXACT
    ) -> None:
        self._records: dict[str, Record] = {}
        self._store, self._max_jobs, self._save_iterations, self._solver = store, max_jobs, save_iterations, solver
        self._disk = ThreadPoolExecutor(1, "snapshots")  # one thread, so that files change in the order of events
        self.snapshot_failures = 0

    def load(self) -> None:
        """Take in all snapshots; those that cannot be used are set aside."""
        for name in list(self._store.names()) if self._store is not None else ():
            assert self._store is not None
            try:
                self._records[name] = Record.restore(name, self._store.read(name), self._solver)
            except (JobError, OSError) as error:
                self._store.set_aside(name, error)
            else:
                iterations = self._records[name].job.learnt_iterations
                log.info("restored", extra={"job": name, "learnt_iterations": iterations})

    def all(self) -> list[Record]:
        """All jobs, by name."""
        return sorted(self._records.values(), key=lambda record: record.name)

    def get(self, name: str, identity: str) -> Record:
        """The job of this name, if it exists and the caller may use it."""
        record = self._records.get(name)
        if record is None or record.ended:
            raise JobNotFoundError(name)
        if record.owner != identity:
            raise NotOwnerError(name, identity)
        return record

    def create(self, name: str, identity: str, spec: JobSpec, membership: Membership, iteration: int | None) -> Record:
        """Add a job; there is none of this name."""
        if not NAME.fullmatch(name):
            raise InvalidValueError("job", name, NAME_RULE)
        if len(self._records) >= self._max_jobs:
            raise LimitReachedError(
                "max_jobs", f"there are {self._max_jobs} jobs already; delete one, or see --max-jobs"
            )
        now = time.time()
        record = Record(name, identity, Job(spec, membership, iteration, self._solver), now, now)
        self._records[name] = record
        log.info("created", extra={"job": name, "owner": identity, "live_workers": membership.live_workers})
        return record

    async def delete(self, record: Record, why: str) -> None:
        """Remove a job and all that it has learnt."""
        if record.ended:
            return
        record.ended = True  # no snapshot is written from now on
        try:
            if self._store is not None:
                await self._on_disk(self._store.delete, record.name)
        except OSError:
            record.ended = False
            raise
        if self._records.get(record.name) is record:  # and not one that was created meanwhile
            del self._records[record.name]
        record.watchers.end()
        log.info(why, extra={"job": record.name, "learnt_iterations": record.job.learnt_iterations})

    async def delete_silent(self, seconds: float) -> None:
        """Remove the jobs that nobody was heard of for so long."""
        for record in self.all():
            if time.time() - record.updated > seconds:
                try:
                    await self.delete(record, "deleted, because it was silent for too long")
                except OSError as error:
                    log.error("its snapshot cannot be deleted: %s", error, extra={"job": record.name})

    def changed(self, record: Record, iterations: int) -> None:
        """Take note that a job is further than its snapshot, and save it if that is due."""
        record.updated = time.time()
        if self._store is None:
            return
        record.unsaved += iterations
        record.changed = True
        due = 2 * record.unsaved >= self._save_iterations or record.updated - record.saved > SAVE_SECONDS
        if due and record.saving is None and record.updated > record.retry:
            record.saving = asyncio.ensure_future(self._save(record))

    def must_wait(self, record: Record) -> "asyncio.Task[None] | None":
        """The snapshot without which too much could be lost, if it is still being written."""
        return record.saving if record.unsaved >= self._save_iterations else None

    async def save(self, record: Record) -> None:
        """Save a job as it is now."""
        if record.saving is not None:
            await asyncio.shield(record.saving)
        if record.changed:
            record.saving = asyncio.ensure_future(self._save(record))
            await asyncio.shield(record.saving)

    async def save_all(self) -> None:
        """Save all jobs, and stop."""
        for record in self.all():
            await self.save(record)
        self._disk.shutdown()
        if self._store is not None:
            self._store.close()

    async def _save(self, record: Record) -> None:
        assert self._store is not None
        try:
            unsaved, record.changed = record.unsaved, False
            state = await record.run(record.snapshot, in_thread=True)
            if not record.ended:
                await self._on_disk(self._store.write, record.name, state)
            record.unsaved -= unsaved
            record.saved = time.time()
        except Exception as error:  # decisions go on whatever is wrong with the disk, or with us
            self.snapshot_failures += 1
            record.changed, record.retry = True, time.time() + RETRY_SECONDS
            log.error("its snapshot cannot be written: %s", error, exc_info=error, extra={"job": record.name})
        finally:
            record.saving = None

    async def _on_disk(self, function: Callable[..., None], *arguments: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._disk, function, *arguments)
