"""Who the workers are: their ids, numbers and sessions, and which of them are alive.

Members hold no clock: times are seconds on any clock that does not go back. Nobody else keeps who is alive.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

ID = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")
ID_RULE = "1 to 128 printable ASCII characters, without spaces at its ends"


class InvalidWorkerError(Exception):
    """A worker's id is not allowed."""


class SessionNotFoundError(Exception):
    """A session is of another process, or of a worker that left or timed out."""

    def __init__(self) -> None:
        super().__init__("the session is not known, because the server restarted or the worker timed out; join again")


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
    used: int = 0  # gradients of this run, by what became of them
    late: int = 0
    lost: int = 0


class Members:
    """All workers that have ever joined. `nonce` tells the sessions of this process from those of another."""

    def __init__(self, nonce: str, timeout: float, numbers: Mapping[str, int] | None = None) -> None:
        self._nonce, self._timeout = nonce, timeout
        self._by_id = {id_: Member(id_, number) for id_, number in (numbers or {}).items()}
        self._by_number = {member.number: member for member in self._by_id.values()}
        self.live: frozenset[int] = frozenset()  # the numbers of those that are alive

    @property
    def all(self) -> list[Member]:
        """All workers, by number."""
        return [self._by_number[number] for number in sorted(self._by_number)]

    @property
    def any_to_notify(self) -> bool:
        """Whether a worker is alive, or was before a restart and has not joined since."""
        return bool(self.live) or any(not member.sessions for member in self.all)

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
        if member.number not in self.live:
            raise SessionNotFoundError
        member.heard = max(member.heard, now)
        return member

    def leave(self, member: Member) -> None:
        """End a worker's session."""
        self.live -= {member.number}

    def suspect(self, session: str, now: float, seconds: float) -> None:
        """Let a worker time out this many seconds from now, unless a message comes from it by then."""
        with suppress(SessionNotFoundError, SessionReplacedError):
            member = self.of(session, 0.0)
            member.heard = min(member.heard, now - self._timeout + seconds)

    def expire(self, now: float) -> list[Member]:
        """End the sessions of those from which no message came for too long; returns them."""
        silent = [self._by_number[number] for number in sorted(self.live)]
        silent = [member for member in silent if now - member.heard > self._timeout]
        self.live -= {member.number for member in silent}
        return silent
