"""One job of a controller, and what the service around it knows of it."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeVar

from msgspec import Raw, Struct

from dbw_controller.core.decision import Decision
from dbw_controller.core.diagnosis import Diagnosis
from dbw_controller.core.errors import JobNotFoundError, SessionNotFoundError, SessionReplacedError, StateDamagedError
from dbw_controller.core.estimators.durations import Solver
from dbw_controller.core.job import Job
from dbw_controller.core.reports import Membership, Report
from dbw_controller.core.state import Name, Real, decode, encode
from dbw_controller.server.counters import Statistics
from dbw_controller.server.watchers import Watchers

T = TypeVar("T")
# What to look through when somebody asks what is wrong with a parameter server's reports.
RECENT_ITERATIONS, RECENT_REPORTS, RECENT_ROWS_A_WORKER = 128, 4096, 256


class Event(NamedTuple):
    """A report that was taken in: the decision then, the answer, and the membership since."""

    report: Report
    asked: Decision
    answer: Decision | None
    membership: Membership
    rows: int  # how many arrivals it has


class Snapshot(Struct, frozen=True):
    """What is kept of a served job over restarts."""

    name: Name
    owner: Name
    created: Real
    updated: Real
    job: Raw


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
        self._session: str | None = None
        self._recent: deque[Event] = deque(maxlen=RECENT_REPORTS)
        self._recent_rows = 0

    def begin_session(self) -> str:
        """Begin a session, and end the one before."""
        self._sessions += 1
        self._session = f"{self._nonce}-{self._sessions}"
        return self._session

    def require_session(self, session: str) -> None:
        """Refuse a report of any but the current session of a job that is still there."""
        if self.ended:
            raise JobNotFoundError(self.name)
        if session != self._session:
            replaced = session.startswith(f"{self._nonce}-")
            raise SessionReplacedError(self.name) if replaced else SessionNotFoundError(self.name)

    def happened(self, event: Event) -> None:
        """Keep a report for those who ask what is wrong with it, as long as there is room."""
        recent, most = self._recent, RECENT_ROWS_A_WORKER * max(event.membership.live_workers, 16)
        if len(recent) == RECENT_REPORTS:
            self._recent_rows -= recent.popleft().rows
        recent.append(event)
        self._recent_rows += event.rows
        while recent and (
            recent[0].asked.iteration + RECENT_ITERATIONS <= event.asked.iteration or self._recent_rows > most
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

    @property
    def is_free(self) -> bool:
        """Whether nobody uses the job, and it is quick enough to be used in the event loop."""
        return not (self.slow or self._lock.locked())

    async def run(
        self, function: Callable[[], T], then: Callable[[T], object] | None = None, in_thread: bool = False
    ) -> T:
        """Do something with the job, one thing at a time; in a thread where that may take long.

        `then` is called in the event loop with the result, even if the caller has gone away meanwhile.
        """
        if self.is_free and not in_thread:
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

    def snapshot(self) -> bytes:
        """All that must survive, encoded. Sessions do not: a parameter server creates its job again."""
        return encode(Snapshot(self.name, self.owner, self.created, self.updated, Raw(self.job.snapshot())))

    @classmethod
    def restore(cls, name: str, data: bytes, solver: Solver) -> Self:
        """The record that a snapshot was taken of."""
        state = decode(data, Snapshot)
        if state.name != name:
            raise StateDamagedError(f"it is of the job {state.name!r}")
        return cls(name, state.owner, Job.restore(bytes(state.job), solver), state.created, state.updated)
