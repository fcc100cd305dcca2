"""Who the workers are: their ids, numbers and sessions, and which of them are alive, stalled or gone.

Members hold no clock: times are seconds on any clock that does not go back. Nobody else keeps who is alive.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from statistics import median_low

from dbw_ps.pace import Pace

ID = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")
ID_RULE = "1 to 128 printable ASCII characters, without spaces at its ends"
# How many sessions of a worker are remembered after they were replaced, so that their processes learn that.
REPLACED_SESSIONS = 8


class InvalidWorkerError(Exception):
    """A worker's id is not allowed."""


class SessionNotFoundError(Exception):
    """A session is of another process, or of a worker that left or timed out."""

    def __init__(self, why: str = "") -> None:
        unknown = "the session is not known, because the server restarted or the worker timed out"
        super().__init__(f"{why or unknown}; join again")


class SessionReplacedError(Exception):
    """A worker has joined again, perhaps in another process."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(f"another process has joined as {worker_id!r}; stop, or give each worker an id of its own")


class NotOwnerError(Exception):
    """An identity may not join, or not under this id, or uses the session of another identity."""


class TooManyWorkersError(Exception):
    """No further worker may join."""

    def __init__(self, max_workers: int) -> None:
        advice = "join under an id that has joined before, or restart the server with a greater --max-workers"
        super().__init__(f"{max_workers} workers have joined this training already, under ids of their own; {advice}")


@dataclass(eq=False)
class Member:
    """One worker, alive or not."""

    id: str
    number: int
    identity: str = ""  # whose credentials it joined with; empty: not known, because there is no authentication
    is_restored: bool = False  # whether it is from before a restart
    session: str | None = None  # its newest one
    replaced: deque[str] = field(default_factory=lambda: deque(maxlen=REPLACED_SESSIONS))
    heard: float = 0.0  # when the last message from it came
    version: int | None = None  # of the parameters that were sent to it last
    pace: Pace = field(default_factory=Pace)
    used: int = 0  # gradients of this run, by what became of them
    late: int = 0
    lost: int = 0


class Members:
    """All workers that have ever joined. `new_secret` returns a text that nobody can guess."""

    def __init__(
        self,
        new_secret: Callable[[], str],
        timeout: float,
        numbers: Mapping[str, int] | None = None,  # of those that have joined before a restart, by their ids,
        identities: Mapping[str, str] | None = None,  # and with whose credentials, as far as that is known
        max_workers: int = 10_000,
        allowed: Collection[str] | None = None,  # the identities that may join; None: all
    ) -> None:
        self._new_secret, self._timeout, self._max_workers, self._allowed = new_secret, timeout, max_workers, allowed
        known = identities or {}
        self._by_id = {id_: Member(id_, number, known.get(id_, ""), True) for id_, number in (numbers or {}).items()}
        self._by_number = {member.number: member for member in self._by_id.values()}
        self._next_number = max(self._by_number, default=-1) + 1
        # The numbers of those that have a session: who is alive, and who takes too long for anybody to wait for it.
        self.live: frozenset[int] = frozenset()
        self.stalled: frozenset[int] = frozenset()

    @property
    def all(self) -> list[Member]:
        """All workers, by number."""
        return [self._by_number[number] for number in sorted(self._by_number)]

    @property
    def any_to_notify(self) -> bool:
        """Whether a worker has a session, or had one before a restart and has not joined since."""
        return bool(self.live | self.stalled) or any(member.session is None for member in self.all)

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each id, to be kept over restarts."""
        return {member.id: member.number for member in self._memorable}

    @property
    def identities(self) -> dict[str, str]:
        """Whose credentials each id was joined with, where that is known, to be kept over restarts."""
        return {member.id: member.identity for member in self._memorable if member.identity}

    def join(self, id_: str, now: float, identity: str = "") -> tuple[Member, str]:
        """Begin a session, which ends the worker's earlier one."""
        if not ID.fullmatch(id_):
            raise InvalidWorkerError(f"worker_id is {id_[:200]!r}; it must be {ID_RULE}")
        if self._allowed is not None and identity not in self._allowed:
            advice = "use the credentials of one that may, or add this one to --worker-identities"
            raise NotOwnerError(f"the identity {identity!r} may not join as a worker; {advice}")
        member = self._by_id.get(id_) or self._add(id_)
        if identity and self._owner(member) not in ("", identity):
            advice = "join with the credentials that it joined with first, or give this worker an id of its own"
            raise NotOwnerError(f"the worker id {id_!r} belongs to another identity; {advice}")
        if member.session is not None:
            member.replaced.append(member.session)
        member.identity, member.session = identity, f"{member.number}-{self._new_secret()}"
        member.heard, member.version = now, None
        self.leave(member)
        member.pace.join(now)
        self.live |= {member.number}
        return member, member.session

    def _add(self, id_: str) -> Member:
        if len(self._by_id) >= self._max_workers:  # forget those that are not needed
            self._by_number = {member.number: member for member in self._memorable}
            self._by_id = {member.id: member for member in self._by_number.values()}
        if len(self._by_id) >= self._max_workers:
            raise TooManyWorkersError(self._max_workers)
        member = Member(id_, self._next_number)
        self._next_number += 1
        self._by_id[id_] = self._by_number[member.number] = member
        return member

    def _owner(self, member: Member) -> str:
        """Who alone may join as this worker. One that may not join any more has no claim to an id."""
        return member.identity if self._allowed is None or member.identity in self._allowed else ""

    def of(self, session: str, now: float, identity: str = "") -> Member:
        """The worker of a session, from which a message of this identity came."""
        member = self._find(session)
        if identity != member.identity:
            raise NotOwnerError("the session belongs to another identity; join, and use the session that this returns")
        if session != member.session:
            raise SessionReplacedError(member.id)
        if member.number not in self.live | self.stalled:
            raise SessionNotFoundError
        member.heard = max(member.heard, now)
        return member

    def _find(self, session: str) -> Member:
        """The worker that has, or had, a session. How long that takes tells nothing about other sessions."""
        number = session[:20].partition("-")[0]
        member = self._by_number.get(int(number)) if number.isdecimal() else None
        for known in () if member is None else (member.session, *member.replaced):
            if known is not None and compare_digest(known.encode(), session.encode()):
                assert member is not None
                return member
        raise SessionNotFoundError

    def is_open(self, session: str) -> bool:
        """Whether a session has not ended."""
        with suppress(SessionNotFoundError):
            member = self._find(session)
            return session == member.session and member.number in self.live | self.stalled
        return False

    def numbered(self, number: int) -> Member:
        """The worker of a number."""
        return self._by_number[number]

    def leave(self, member: Member) -> None:
        """End a worker's session."""
        self.live -= {member.number}
        self.stalled -= {member.number}
        member.pace.leave()

    def suspect(self, session: str, now: float, seconds: float) -> None:
        """Let a worker time out this many seconds from now, unless a message comes from it by then."""
        if self.is_open(session):
            member = self._find(session)
            member.heard = min(member.heard, now - self._timeout + seconds)

    def expire(self, now: float) -> list[Member]:
        """End the sessions of those from which no message came for too long; returns them."""
        silent = [member for member in self._present if now - member.heard > self._timeout]
        for member in silent:
            self.leave(member)
        return silent

    def find_stalled(self, now: float) -> list[Member]:
        """Find out whose computation is stalled; returns those that were not, and those that no longer are."""
        present = self._present
        known = [one.pace.longest for one in present if one.pace.longest is not None]
        usual = median_low(known) if known else 0.0
        stalled = frozenset(one.number for one in present if one.pace.find_stalled(now, self._timeout, usual))
        before, self.stalled = self.stalled, stalled
        self.live = (self.live | before) - stalled
        return [one for one in present if one.number in stalled ^ before]

    def postpone(self, seconds: float, now: float) -> None:
        """Do not count these last seconds, in which nobody listened to workers."""
        for member in self._present:
            member.heard = min(member.heard + seconds, now)
            member.pace.postpone(seconds)

    @property
    def _memorable(self) -> list[Member]:
        """Without those that have gone and delivered nothing: one worker could use up all places with such ids."""
        present = self.live | self.stalled
        return [one for one in self.all if one.is_restored or one.used or one.late or one.lost or one.number in present]

    @property
    def _present(self) -> list[Member]:
        return [self._by_number[number] for number in sorted(self.live | self.stalled)]
