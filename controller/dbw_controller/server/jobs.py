"""The jobs of a controller by name, and who owns them."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from dbw_controller.contract import NAME, NAME_RULE
from dbw_controller.core.errors import (
    DiskFailedError,
    InvalidValueError,
    JobError,
    JobNotFoundError,
    LimitReachedError,
    NotOwnerError,
    SessionReplacedError,
    damaged_state,
)
from dbw_controller.core.estimators.durations import Solver
from dbw_controller.core.job import Job, new_job_bytes
from dbw_controller.core.reports import Membership
from dbw_controller.core.spec import JobSpec
from dbw_controller.server.job_messages import job_message
from dbw_controller.server.quotas import DEFAULT_LIMITS, JobLimits, Quotas
from dbw_controller.server.saver import Disk, unless_cancelled
from dbw_controller.server.served_job import ServedJob
from dbw_controller.server.store import SnapshotStore
from dbw_runtime.callers import Caller
from dbw_runtime.disk_watch import HANG_SECONDS
from dbw_runtime.server import UnsavedError

log = logging.getLogger(__name__)
T = TypeVar("T")
# How long all jobs together may take to be saved at the end. After 10 s of --drain-seconds, Kubernetes leaves 20.
STOP_SECONDS = 15.0
MAX_NAMES = 10  # in a text


class Jobs:
    """All jobs of a controller. `clock` is monotonic; `wall_clock` has the times that people see."""

    def __init__(
        self,
        store: SnapshotStore | None,
        max_jobs: int,
        save_iterations: int,
        solver: Solver = Solver.EXACT,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        limits: JobLimits = DEFAULT_LIMITS,
    ) -> None:
        self.quotas = Quotas(limits)
        self._jobs: dict[str, ServedJob] = {}
        self._max_jobs, self._solver, self._wall_clock = max_jobs, solver, wall_clock
        self.disk = Disk(store, save_iterations, clock)

    def load(self) -> None:
        """Restore all snapshots; damaged ones are set aside. FolderError if the machine fails to read a good one."""
        if (store := self.disk.store) is None:
            return
        for name in store.names():
            try:
                self._restore(store, name)
            except (OSError, MemoryError) as error:
                raise store.unreadable(name, error) from error

    def _restore(self, store: SnapshotStore, name: str) -> None:
        try:
            served = ServedJob.restore(name, store.read(name), self._solver, self.disk, self._wall_clock)
            with damaged_state():
                job_message(served, include_estimates=True)  # one that cannot be shown would fail when jobs are listed
        except JobError as error:
            store.set_aside(name, error)
        else:
            self._jobs[name] = served
            self.quotas.add(served)  # whatever they allow now: it was there before
            log.info("restored", extra={"job": name, "learnt_iterations": served.job.learnt_iterations})

    def all(self) -> list[ServedJob]:
        """All jobs, by name."""
        return sorted(self._jobs.values(), key=lambda served: served.name)

    def get(self, name: str, caller: Caller, for_admins: bool = False) -> ServedJob:
        """The job of this name, if it belongs to the caller, who otherwise does not learn whether there is one.

        With `for_admins`, an administrator gets those of others, too.
        """
        served = self._there(name)
        if served is not None and served.belongs_to(caller):
            if served.owner != caller.identity:
                self.quotas.remove(served)
                served.claim(caller)
                self.quotas.add(served)
            return served
        if served is not None and for_admins and caller.is_admin:
            return served
        raise JobNotFoundError(name)

    def _there(self, name: str) -> ServedJob | None:
        served = self._jobs.get(name)
        return None if served is None or served.ended else served

    def visible(self, caller: Caller) -> list[ServedJob]:
        """The jobs that the caller may see, by name."""
        return [served for served in self.all() if caller.is_admin or served.belongs_to(caller)]

    def create(
        self, name: str, identity: str, spec: JobSpec, membership: Membership, iteration: int | None
    ) -> ServedJob:
        """Add a job. The caller has none of this name, and another identity must not have one either."""
        if not NAME.fullmatch(name):
            raise InvalidValueError("job", name, NAME_RULE)
        if self._there(name) is not None:
            raise NotOwnerError(name)
        if len(self._jobs) >= self._max_jobs:
            text = f"the controller takes no more than {self._max_jobs} jobs; delete one of yours, or see --max-jobs"
            raise LimitReachedError("max_jobs", text)
        self.quotas.require_job(identity, new_job_bytes(membership.live_workers))
        job = Job(spec, membership, iteration, self._solver)
        served = ServedJob(name, identity, job, self.disk, self._wall_clock)
        self._jobs[name] = served
        self.quotas.add(served)
        log.info("created", extra={"job": name, "owner": identity, "live_workers": membership.live_workers})
        return served

    async def delete(
        self, served: ServedJob, why: str, session: str | None = None, silent_seconds: float = 0.0
    ) -> None:
        """Remove a job and all that it has learnt, as `ServedJob.delete` does.

        DiskFailedError if its snapshot cannot be deleted: the job stays.
        """
        await unless_cancelled(asyncio.ensure_future(self._delete(served, why, session, silent_seconds)))

    async def _delete(self, served: ServedJob, why: str, session: str | None, silent_seconds: float) -> None:
        await served.delete(session, silent_seconds)
        self.quotas.remove(served)
        if self._jobs.get(served.name) is served:  # and not one that was created meanwhile
            del self._jobs[served.name]
            log.info(why, extra={"job": served.name, "learnt_iterations": served.job.learnt_iterations})

    async def delete_silent(self, seconds: float) -> None:
        """Remove the jobs that nobody has used for more than this time."""
        for served in self.all():
            if served.silent_seconds > seconds:
                try:
                    await self.delete(served, "deleted, because it was silent for too long", silent_seconds=seconds)
                except (JobNotFoundError, SessionReplacedError):
                    pass  # it is deleted already, or in use again
                except DiskFailedError as error:
                    log.error("silent for too long, but not deleted: %s", error, extra={"job": served.name})

    async def close(self) -> None:
        """Save all jobs, and stop. UnsavedError names those that could not be saved, or not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self.disk.unless_it_hangs(self._save_all(), HANG_SECONDS)
        unsaved = [served.name for served in self.all() if served.saver.is_unsaved]
        if unsaved:
            names = ", ".join(unsaved[:MAX_NAMES]) + (", …" if len(unsaved) > MAX_NAMES else "")
            raise UnsavedError(
                f"the disk fails, hangs or is slow, and what is not in the snapshots of these jobs is lost: {names}"
            )
        self.disk.close()

    async def _save_all(self) -> None:
        for served in self.all():
            await served.saver.save()
        async with self.disk.turn:
            pass  # nothing is being deleted any more, which would keep the disk's thread


def readable(jobs: Iterable[ServedJob], read: Callable[[ServedJob], T]) -> Iterator[tuple[ServedJob, T]]:
    """What `read` says of each job. One that it fails for is left out, so that the others can be seen."""
    for served in jobs:
        try:
            yield served, read(served)
        except Exception as error:
            log.error("it cannot be shown: %s", error, exc_info=error, extra={"job": served.name})
