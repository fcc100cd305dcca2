"""The jobs of a controller by name, and who owns them."""

import logging
import time
from collections.abc import Callable

from dbw_controller.contract import NAME, NAME_RULE
from dbw_controller.core.errors import InvalidValueError, JobError, JobNotFoundError, LimitReachedError, NotOwnerError
from dbw_controller.core.estimators.durations import Solver
from dbw_controller.core.job import Job
from dbw_controller.core.reports import Membership
from dbw_controller.core.spec import JobSpec
from dbw_controller.server.saver import Disk
from dbw_controller.server.served_job import ServedJob
from dbw_controller.server.store import SnapshotStore

log = logging.getLogger(__name__)


class Jobs:
    """All jobs of a controller."""

    def __init__(
        self,
        store: SnapshotStore | None,
        max_jobs: int,
        save_iterations: int,
        solver: Solver = Solver.EXACT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._jobs: dict[str, ServedJob] = {}
        self._max_jobs, self._solver, self._clock = max_jobs, solver, clock
        self.disk = Disk(store, save_iterations, clock)

    def load(self) -> None:
        """Restore all snapshots; those that cannot be used are set aside."""
        if (store := self.disk.store) is None:
            return
        for name in list(store.names()):
            try:
                served = ServedJob.restore(name, store.read(name), self._solver, self.disk)
            except (JobError, OSError) as error:
                store.set_aside(name, error)
            else:
                self._jobs[name] = served
                log.info("restored", extra={"job": name, "learnt_iterations": served.job.learnt_iterations})

    def all(self) -> list[ServedJob]:
        """All jobs, by name."""
        return sorted(self._jobs.values(), key=lambda served: served.name)

    def get(self, name: str, identity: str) -> ServedJob:
        """The job of this name, if it exists and the caller may use it."""
        served = self._jobs.get(name)
        if served is None or served.ended:
            raise JobNotFoundError(name)
        if served.owner != identity:
            raise NotOwnerError(name, identity)
        return served

    def create(
        self, name: str, identity: str, spec: JobSpec, membership: Membership, iteration: int | None
    ) -> ServedJob:
        """Add a job; there is none of this name."""
        if not NAME.fullmatch(name):
            raise InvalidValueError("job", name, NAME_RULE)
        if len(self._jobs) >= self._max_jobs:
            raise LimitReachedError(
                "max_jobs", f"there are {self._max_jobs} jobs already; delete one, or see --max-jobs"
            )
        now = self._clock()
        served = ServedJob(name, identity, Job(spec, membership, iteration, self._solver), self.disk, now, now)
        self._jobs[name] = served
        log.info("created", extra={"job": name, "owner": identity, "live_workers": membership.live_workers})
        return served

    async def delete(self, served: ServedJob, why: str) -> None:
        """Remove a job and all that it has learnt, unless that is being done already."""
        if served.ended:
            return
        await served.delete()
        if self._jobs.get(served.name) is served:  # and not one that was created meanwhile
            del self._jobs[served.name]
        log.info(why, extra={"job": served.name, "learnt_iterations": served.job.learnt_iterations})

    async def delete_silent(self, seconds: float) -> None:
        """Remove the jobs that have not changed for more than this time."""
        for served in self.all():
            if self._clock() - served.updated > seconds:
                try:
                    await self.delete(served, "deleted, because it was silent for too long")
                except OSError as error:
                    log.error("its snapshot cannot be deleted: %s", error, extra={"job": served.name})

    async def close(self) -> None:
        """Save all jobs, and stop."""
        for served in self.all():
            await served.saver.save()
        self.disk.close()
