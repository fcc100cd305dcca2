"""Who the workers are: their ids, numbers and sessions, and which of them are alive, stalled or gone.

Members hold no clock: times are seconds on any clock that does not go back. Nobody else keeps who is alive.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median_low

from dbw_ps.pace import Pace

ID = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")
ID_RULE = "1 to 128 printable ASCII characters, without spaces at its ends"


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


@dataclass(eq=False)
class Member:
    """One worker, alive or not."""

    id: str
    number: int
    sessions: int = 0  # how often it has joined
    heard: float = 0.0  # when the last message from it came
    version: int | None = None  # of the parameters that were sent to it last
    pace: Pace = field(default_factory=Pace)
    used: int = 0  # gradients of this run, by what became of them
    late: int = 0
    lost: int = 0


class Members:
    """All workers that have ever joined. `nonce` tells the sessions of this process from those of another."""

    def __init__(self, nonce: str, timeout: float, numbers: Mapping[str, int] | None = None) -> None:
        self._nonce, self._timeout = nonce, timeout
        self._by_id = {id_: Member(id_, number) for id_, number in (numbers or {}).items()}
        self._by_number = {member.number: member for member in self._by_id.values()}
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
        return bool(self.live | self.stalled) or any(not member.sessions for member in self.all)

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each id, to be kept over restarts."""
        return {member.id: member.number for member in self.all}

    def join(self, id_: str, now: float) -> tuple[Member, str]:
        """Begin a session, which ends the worker's earlier one."""
        if not ID.fullmatch(id_):
            raise InvalidWorkerError(f"worker_id is {id_!r}; it must be {ID_RULE}")
        member = self._by_id.get(id_)
        if member is None:
            member = Member(id_, max(self._by_number, default=-1) + 1)
            self._by_id[id_] = self._by_number[member.number] = member
        member.sessions += 1
        member.heard, member.version = now, None
        self.leave(member)
        member.pace.join(now)
        self.live |= {member.number}
        return member, f"{self._nonce}-{member.number}-{member.sessions}"

    def of(self, session: str, now: float) -> Member:
        """The worker of a session, from which a message came."""
        nonce, _, rest = session[:64].partition("-")
        number, _, count = rest.partition("-")
        if nonce != self._nonce or not (number.isdecimal() and count.isdecimal()):
            raise SessionNotFoundError
        member = self._by_number.get(int(number))
        if member is None:
            raise SessionNotFoundError
        if int(count) != member.sessions:
            raise SessionReplacedError(member.id)
        if member.number not in self.live | self.stalled:
            raise SessionNotFoundError
        member.heard = max(member.heard, now)
        return member

    def is_open(self, session: str) -> bool:
        """Whether a session has not ended."""
        with suppress(SessionNotFoundError, SessionReplacedError):
            return self.of(session, 0.0) is not None
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
        with suppress(SessionNotFoundError, SessionReplacedError):
            member = self.of(session, 0.0)
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
    def _present(self) -> list[Member]:
        return [self._by_number[number] for number in sorted(self.live | self.stalled)]
