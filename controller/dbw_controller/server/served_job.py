"""A job as the controller serves it: to one session at a time, and with one thing done to it at a time."""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from hmac import compare_digest
from typing import Annotated, Self, TypeVar

from msgspec import Meta, Raw, Struct

from dbw_controller.core.decision import Decision
from dbw_controller.core.errors import JobNotFoundError, SessionNotFoundError, SessionReplacedError, StateDamagedError
from dbw_controller.core.estimators.durations import Solver
from dbw_controller.core.job import Job
from dbw_controller.core.reports import Membership, Report
from dbw_controller.core.state import Name, decode, encode
from dbw_controller.server.counters import Statistics
from dbw_controller.server.recent_reports import RecentReports
from dbw_controller.server.saver import Disk, Saver, unless_cancelled
from dbw_controller.server.watchers import Watcher
from dbw_runtime.callers import Caller
from dbw_runtime.rpc import Call

log = logging.getLogger(__name__)
T = TypeVar("T")
NO_ROOM_NEEDED = nullcontext()
# A job whose last decision took longer than this goes to a thread, so that others need not wait for it.
MAX_SECONDS_IN_LOOP = 0.002
# How many sessions of a job are remembered after they were replaced, so that their processes learn that.
REPLACED_SESSIONS = 64
# A time of the wall clock that a protobuf Timestamp can hold, until the year 9999.
WallTime = Annotated[float, Meta(ge=0, lt=253_402_300_800)]


class Outcome(Struct, frozen=True):
    """What a report led to."""

    before: Decision  # the newest decision before it
    decision: Decision | None  # the answer to it
    seconds: float  # from its arrival, or the answer to the one before it in the same request, to the answer

    @property
    def is_new(self) -> bool:
        """Whether a decision was made for another iteration."""
        return self.decision is not None and self.decision.iteration > self.before.iteration


class Snapshot(Struct, frozen=True):
    """What is kept of a served job over restarts. The job itself checks its version before it is decoded."""

    name: Name
    owner: Name
    created: WallTime
    updated: WallTime
    job: Raw
    # Earlier versions do not have this. Their owner may be a name in a certificate, without its type.
    is_owner_exact: bool = False


def is_same(session: str, other: str) -> bool:
    """Whether two sessions are the same. How long that takes does not tell how much of them is."""
    return compare_digest(session.encode(), other.encode())


class ServedJob:
    """A job, its session, and those who save, count and watch it. `wall_clock` is for people, and decides nothing."""

    def __init__(
        self, name: str, owner: str, job: Job, disk: Disk, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.name, self.owner, self.job = name, owner, job
        self._is_owner_exact = True
        self.created = self.updated = wall_clock()
        self.decision = job.decision()  # the newest one, also while a thread works on the job
        self.statistics, self.recent = Statistics(), RecentReports()
        self.watchers: set[Watcher] = set()
        self.ended = False  # deleted
        self.charged_bytes = self.uncharged_bytes = 0  # see Quotas
        self.streams: dict[Call, str] = {}  # and the session of each
        self.saver = Saver(name, disk, self._state)
        self._clock, self._wall_clock = disk.clock, wall_clock
        self._used = disk.clock()  # when it was last
        self._slow = False  # whether the last decision took long
        self._lock = asyncio.Lock()
        self._session: str | None = None
        self._replaced: deque[str] = deque(maxlen=REPLACED_SESSIONS)

    def belongs_to(self, caller: Caller) -> bool:
        """Whether the caller is the owner, or may become it as the owner's name in an earlier version."""
        is_old_name = not self._is_owner_exact and self.owner in caller.untyped_names
        return self.owner == caller.identity or is_old_name

    def claim(self, caller: Caller) -> None:
        """Have the job of an earlier version belong to the typed identity of its owner from now on."""
        about = {"job": self.name, "old_owner": self.owner, "owner": caller.identity}
        log.warning("its owner, as an earlier version named it, has another name from now on", extra=about)
        self.owner, self._is_owner_exact = caller.identity, True
        self.saver.changed(0)

    @property
    def memory_bytes(self) -> int:
        """What the job takes, roughly."""
        return self.job.memory_bytes() + self.recent.memory_bytes

    def begin_session(self) -> str:
        """Begin a session, and end the one before."""
        if self._session is not None:
            self._replaced.append(self._session)
        self._session = secrets.token_urlsafe()
        return self._session

    def require_session(self, session: str) -> None:
        """Refuse any but the current session of a job that is still there."""
        if self.ended:
            raise JobNotFoundError(self.name)
        if self._session is None or not is_same(session, self._session):
            replaced = any(is_same(session, earlier) for earlier in self._replaced)
            raise SessionReplacedError(self.name) if replaced else SessionNotFoundError(self.name)

    @property
    def is_free(self) -> bool:
        """Whether nobody uses the job, and it is quick enough to be used in the event loop."""
        return not (self._slow or self._lock.locked())

    async def run(
        self,
        function: Callable[[], T],
        then: Callable[[T], object] | None = None,
        in_thread: bool = False,
        room: AbstractContextManager[object] = NO_ROOM_NEEDED,
    ) -> T:
        """Do something with the job, one thing at a time; in a thread where that may take long.

        `then` is called in the event loop with the result, even if the caller has gone away meanwhile. One that goes
        away before its turn is forgotten. `room` is entered while a thread works.
        """
        if self.is_free and not in_thread:
            result = function()
            if then is not None:
                then(result)
            return result

        async def work() -> T:
            try:
                with room:
                    result = await asyncio.to_thread(function)
                    if then is not None:
                        then(result)
                return result
            finally:
                self._lock.release()

        await self._lock.acquire()
        # A caller that goes away must not leave the job to the next one while a thread still works on it.
        return await unless_cancelled(asyncio.ensure_future(work()))

    def attach(self, membership: Membership, iteration: int | None) -> str:
        """Begin a session of a parameter server that starts or restarts, while nobody else uses the job."""
        if self.ended:
            raise JobNotFoundError(self.name)
        self.decision = self.job.begin(membership, iteration)
        self.recent.clear()
        return self.begin_session()

    def end_other_streams(self, session: str) -> None:
        """End the streams of all sessions but this one, so that those who were replaced learn of it."""
        for stream, served_session in self.streams.items():
            if served_session != session:
                stream.end_waiting(SessionReplacedError(self.name))

    def apply_report(self, session: str, report: Report, begin: float) -> Outcome:
        """Give a report that came at `begin` (`time.perf_counter`) to the job, while nobody else uses it."""
        self.require_session(session)
        before, decision = self.decision, self.job.report(report)
        seconds = time.perf_counter() - begin
        if decision is not None:
            self.decision, self._slow = decision, seconds > MAX_SECONDS_IN_LOOP
        return Outcome(before, decision, seconds)

    def apply_reports(
        self, session: str, reports: Sequence[Report], begin: float
    ) -> tuple[list[Outcome | None], Exception | None]:
        """Give several reports to the job, oldest first; None for those that it had before the last one.

        If one fails when others have changed the job, those are returned with its failure.
        """
        outcomes: list[Outcome | None] = []
        try:
            for report in reports:
                is_due = report is reports[-1] or self._is_new(report)
                outcomes.append(self.apply_report(session, report, begin) if is_due else None)
                begin = time.perf_counter()  # of the next one, which was not to be decided before
        except Exception as failure:
            if not any(outcomes):
                raise
            return outcomes, failure
        return outcomes, None

    def _is_new(self, report: Report) -> bool:
        return report.summary is not None and report.summary.iteration >= self.decision.iteration

    def adopt(self, session: str, import_state: Callable[[Job], Decision]) -> None:
        """Replace what the job has learnt, while nobody else uses it."""
        self.require_session(session)  # much may have happened during the upload
        self.decision = import_state(self.job)

    def record(self, report: Report, outcome: Outcome, by_worker: bool) -> None:
        """Count a report that was applied, and keep it for a diagnosis."""
        if by_worker:
            for arrivals in report.arrivals:
                self.statistics.arrived(arrivals, self.job.membership.live_workers)
        self.recent.add(report, outcome.before, outcome.decision, self.job.membership)
        if report.summary is not None and outcome.decision is not None and outcome.is_new:
            decided = outcome.before if outcome.before.iteration == report.summary.iteration else None
            self.statistics.ended(report.summary, decided)
            self.statistics.decided(outcome.decision, outcome.seconds)

    def changed(self, iterations: int = 0) -> None:
        """Take note that the job has changed, by some iterations, and have it saved if that is due."""
        self._used, self.updated = self._clock(), self._wall_clock()
        self.saver.changed(iterations)

    def stream_ended(self, stream: Call) -> None:
        """A stream of reports is not open any more."""
        self.streams.pop(stream, None)
        self._used = self._clock()

    @property
    def silent_seconds(self) -> float:
        """How long nobody has used the job, as far as this process knows; 0 while a stream of reports is open."""
        return 0.0 if self.streams else self._clock() - self._used

    async def delete(self, session: str | None = None, silent_seconds: float = 0.0) -> None:
        """End the job, in its current session if one is given, and if it has been silent for `silent_seconds`.

        If its snapshot cannot be deleted, it stays as it is.
        """
        require = partial(self._require_deletable, session, silent_seconds)
        # Once more when the snapshot is deleted: a session that has begun meanwhile keeps the job.
        await self.saver.delete(require, partial(self.run, require, then=self._end))

    def _require_deletable(self, session: str | None, silent_seconds: float) -> None:
        if self.ended:
            raise JobNotFoundError(self.name)
        # Nobody has created the job again since the controller restarted: its last session is over, and may say so.
        if session is not None and self._session is not None:
            self.require_session(session)
        if self.silent_seconds < silent_seconds:
            raise SessionReplacedError(self.name)

    def _end(self, _: None) -> None:
        self.ended = True
        for watcher in self.watchers:
            watcher.end()

    async def _state(self) -> bytes | None:
        return None if self.ended else await self.run(self.snapshot, in_thread=True)

    def snapshot(self) -> bytes:
        """All that must survive, encoded. Sessions do not: a parameter server creates its job again."""
        about = {"name": self.name, "owner": self.owner, "created": self.created, "updated": self.updated}
        about["is_owner_exact"] = self._is_owner_exact
        return encode({**about, "job": self.job.state()})  # encoded once: it may be large

    @classmethod
    def restore(
        cls, name: str, data: bytes, solver: Solver, disk: Disk, wall_clock: Callable[[], float] = time.time
    ) -> Self:
        """The job that a snapshot was taken of."""
        state = decode(data, Snapshot)
        if state.name != name:
            raise StateDamagedError(f"it is of the job {state.name!r}")
        served = cls(name, state.owner, Job.restore(bytes(state.job), solver), disk, wall_clock)
        served.created, served.updated = state.created, state.updated
        served._is_owner_exact = state.is_owner_exact
        return served
