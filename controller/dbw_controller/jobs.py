"""The jobs of a controller: who owns them, who reports for them, and where they are kept."""

import asyncio
import logging
import re
import secrets
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar

from dbw_controller import plain
from dbw_controller.decision import Decision
from dbw_controller.diagnosis import Diagnosis
from dbw_controller.errors import (
    InvalidValueError,
    JobError,
    JobNotFoundError,
    LimitReachedError,
    NotOwnerError,
    SessionNotFoundError,
    SessionReplacedError,
    damaged_state,
)
from dbw_controller.estimators.durations import Solver
from dbw_controller.events import Membership, Report
from dbw_controller.job import Job
from dbw_controller.spec import JobSpec
from dbw_controller.statistics import Statistics
from dbw_controller.store import SnapshotStore
from dbw_controller.watching import Watchers

log = logging.getLogger(__name__)
T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# A job whose last decision took longer than this goes to a thread, so that others need not wait for it.
LONGEST_IN_LOOP = 0.002
# What to look through when somebody asks what is wrong with a parameter server's reports.
RECENT_ITERATIONS, RECENT_REPORTS, RECENT_ROWS_A_WORKER = 128, 4096, 256
# Jobs with slow iterations are saved by the clock; a disk that fails is given some time.
SAVE_SECONDS, RETRY_SECONDS = 10.0, 1.0


class Event(NamedTuple):
    """A report that was taken in: the decision then, the answer, and the membership since."""

    report: Report
    asked: Decision
    answer: Decision | None
    membership: Membership
    rows: int  # how many arrivals it has


@dataclass(eq=False)
class Record:
    """A job, and what the service around it knows of it."""

    name: str
    owner: str
    job: Job
    created: float  # by the wall clock, as all times here
    updated: float
    statistics: Statistics = field(default_factory=Statistics)
    watchers: Watchers = field(default_factory=Watchers)
    slow: bool = False  # whether the last decision took long
    unsaved: int = 0  # iterations since the last snapshot
    changed: bool = False  # whether anything has happened since then
    ended: bool = False  # deleted, or about to be
    saved: float = 0.0
    retry: float = 0.0  # when to write again after a failure
    saving: "asyncio.Task[None] | None" = None
    decision: Decision = field(init=False)  # the newest one, also while a thread works on the job

    def __post_init__(self) -> None:
        """Take over what the job has decided."""
        self.decision = self.job.decision()
        self._lock = asyncio.Lock()
        self._nonce, self._sessions = secrets.token_hex(8), 0
        self._recent: deque[Event] = deque(maxlen=RECENT_REPORTS)
        self._recent_rows = 0

    def begin_session(self) -> str:
        """Begin a session, and end the one before."""
        self._sessions += 1
        return f"{self._nonce}-{self._sessions}"

    def require_session(self, session: str) -> None:
        """Refuse a report of any but the current session of a job that is still there."""
        nonce, _, number = session.partition("-")
        if self.ended:
            raise JobNotFoundError(self.name)
        if nonce != self._nonce or not number.isdecimal():
            raise SessionNotFoundError(self.name)
        if int(number) != self._sessions:
            raise SessionReplacedError(self.name)

    def happened(self, event: Event) -> None:
        """Keep a report for those who ask what is wrong with it, as long as there is room."""
        recent, most = self._recent, RECENT_ROWS_A_WORKER * max(event.membership.live_workers, 16)
        if len(recent) == RECENT_REPORTS:
            self._recent_rows -= recent.popleft().rows
        recent.append(event)
        self._recent_rows += event.rows
        while recent and (
            recent[0].asked.iteration + RECENT_ITERATIONS < event.asked.iteration or self._recent_rows > most
        ):
            self._recent_rows -= recent.popleft().rows

    def forget_recent(self) -> None:
        """Begin anew: what was reported before does not belong to what comes."""
        self._recent.clear()
        self._recent_rows = 0

    def diagnose(self) -> Diagnosis:
        """What looks wrong in the recent reports."""
        diagnosis = Diagnosis(self.job.spec.sync_mode)
        for event in list(self._recent):
            diagnosis.observe(event.report, event.asked, event.answer, event.membership)
        return diagnosis

    async def run(
        self, function: Callable[[], T], then: Callable[[T], object] | None = None, in_thread: bool = False
    ) -> T:
        """Do something with the job, one thing at a time; in a thread where that may take long.

        `then` is called in the event loop with the result, even if the caller has gone away meanwhile.
        """
        if not (in_thread or self.slow or self._lock.locked()):
            result = function()
            if then is not None:
                then(result)
            return result

        async def alone() -> T:
            async with self._lock:
                result = await asyncio.to_thread(function)
                if then is not None:
                    then(result)
                return result

        # A caller that goes away must not leave the job to the next one while a thread still works on it.
        return await asyncio.shield(asyncio.ensure_future(alone()))

    def snapshot(self) -> dict[str, Any]:
        """All that must survive, as plain data. Sessions do not: a parameter server tells its workers anew."""
        times = {"created": self.created, "updated": self.updated}
        return {"name": self.name, "owner": self.owner, **times, "job": self.job.snapshot()}

    @classmethod
    def restore(cls, name: str, state: Any, solver: Solver) -> Self:  # noqa: ANN401
        """The record that a snapshot was taken of."""
        with damaged_state():
            if state["name"] != name:
                raise ValueError(f"it is of the job {state['name']!r}")
            job = Job.restore(state["job"], solver)
            return cls(name, str(state["owner"]), job, plain.real(state["created"]), plain.real(state["updated"]))


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
            rule = "1 to 128 letters, digits, '-', '_' and '.', the first a letter or digit"
            raise InvalidValueError("job", name, rule)
        if len(self._records) >= self._max_jobs:
            raise LimitReachedError(
                "max_jobs", f"there are {self._max_jobs} jobs already; delete one, or try again later"
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
