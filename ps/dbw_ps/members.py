"""Who the workers are: their ids, numbers and sessions, and which of them are alive.

Members hold no clock: times are seconds on any clock that does not go back.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from dbw_ps.errors import InvalidWorkerError, SessionNotFoundError, SessionReplacedError

ID = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")
ID_RULE = "1 to 128 printable ASCII characters, without spaces at its ends"


@dataclass(eq=False)
class Member:
    """One worker, alive or given up."""

    id: str
    number: int
    sessions: int = 0  # how often it has joined
    live: bool = False
    heard: float = 0.0  # when anything was heard of it last
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

    @property
    def all(self) -> list[Member]:
        """All workers, by number."""
        return [self._by_number[number] for number in sorted(self._by_number)]

    @property
    def live(self) -> list[int]:
        """The numbers of those that are alive."""
        return [member.number for member in self.all if member.live]

    @property
    def any_to_tell(self) -> bool:
        """Whether a worker is alive, or was before a restart and has not been heard of since."""
        return any(member.live or not member.sessions for member in self.all)

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each id, to be kept over restarts."""
        return {member.id: member.number for member in self.all}

    def join(self, id_: str, now: float) -> tuple[Member, str]:
        """Begin a session, which ends the worker's earlier one."""
        if not ID.fullmatch(id_):
            raise InvalidWorkerError(id_, ID_RULE)
        member = self._by_id.get(id_)
        if member is None:
            member = Member(id_, max(self._by_number, default=-1) + 1)
            self._by_id[id_] = self._by_number[member.number] = member
        member.sessions += 1
        member.live, member.heard, member.version = True, now, None
        return member, f"{self._nonce}-{member.number}-{member.sessions}"

    def of(self, session: str, now: float) -> Member:
        """The worker of a session, of which something was heard."""
        nonce, _, rest = session[:64].partition("-")
        number, _, count = rest.partition("-")
        if nonce != self._nonce or not (number.isdecimal() and count.isdecimal()):
            raise SessionNotFoundError
        member = self._by_number.get(int(number))
        if member is None:
            raise SessionNotFoundError
        if int(count) != member.sessions:
            raise SessionReplacedError(member.id)
        if not member.live:
            raise SessionNotFoundError
        member.heard = max(member.heard, now)
        return member

    def leave(self, member: Member) -> None:
        """End a worker's session."""
        member.live = False

    def suspect(self, session: str, now: float, seconds: float) -> None:
        """Give a worker up after so many seconds, unless it is heard of by then."""
        with suppress(SessionNotFoundError, SessionReplacedError):
            member = self.of(session, 0.0)
            member.heard = min(member.heard, now - self._timeout + seconds)

    def expire(self, now: float) -> list[Member]:
        """Give up those of which nothing was heard for too long."""
        silent = [member for member in self.all if member.live and now - member.heard > self._timeout]
        for member in silent:
            member.live = False
        return silent
