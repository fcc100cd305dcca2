"""How many jobs each identity may have, and how much memory what they have learnt may take.

Callers without an identity, because the server does not ask, have no quota: only the totals hold. A job says itself
what it takes, roughly. What it may come to take is checked before it is allocated.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from dbw_controller.core.errors import LimitReachedError

MIB = 2**20
UNCHARGED_BYTES = MIB  # that a job may have grown by before it is counted again, which takes time


@dataclass(frozen=True)
class JobLimits:
    """How many jobs an identity may have, and how many bytes they may take; and those of all identities together."""

    identity_jobs: int = 200
    identity_bytes: int = 1024 * MIB
    total_bytes: int = 2048 * MIB


DEFAULT_LIMITS = JobLimits()


class Charged(Protocol):
    """A job that takes memory."""

    owner: str
    charged_bytes: int  # what was counted for it last
    uncharged_bytes: int  # by which it may have grown since then, at most
    ended: bool  # after which it is not counted

    @property
    def memory_bytes(self) -> int:
        """What it takes now."""
        ...


class Quotas:
    """What the jobs of each identity take."""

    def __init__(self, limits: JobLimits) -> None:
        self._limits = limits
        self._jobs: Counter[str] = Counter()  # by identity
        self._bytes: Counter[str] = Counter()  # by identity
        self._total_bytes = 0

    def require_job(self, identity: str, size: int) -> None:
        """Refuse a new job that there is no room for."""
        most = self._limits.identity_jobs
        if identity and self._jobs[identity] >= most:
            text = f"this identity has {most} jobs already; delete one, or see --max-identity-jobs"
            raise LimitReachedError("max_identity_jobs", text)
        self.require_room(identity, size)

    def require_room(self, identity: str, more: int) -> None:
        """Refuse what would make an identity's jobs take this many bytes more, if there is no room for them."""
        if more <= 0:
            return
        taken, most = self._bytes[identity], self._limits.identity_bytes
        if identity and taken + more > most:
            raise LimitReachedError("max_identity_bytes", _full("this identity's jobs", "identity", taken, more, most))
        taken, most = self._total_bytes, self._limits.total_bytes
        if taken + more > most:
            raise LimitReachedError("max_total_bytes", _full("all jobs", "total", taken, more, most))

    @contextmanager
    def reserved(self, identity: str, more: int) -> Iterator[None]:
        """Keep room for something that takes a while."""
        self.require_room(identity, more)
        self._add(identity, more)
        try:
            yield
        finally:
            self._add(identity, -more)

    def add(self, job: Charged) -> None:
        """Count a job."""
        self._jobs[job.owner] += 1
        self.charge(job)

    def grown(self, job: Charged, more: int) -> None:
        """Count what a job takes, if it may have grown much since that was done."""
        job.uncharged_bytes += more
        if job.uncharged_bytes >= UNCHARGED_BYTES:
            self.charge(job)

    def charge(self, job: Charged) -> None:
        """Count what a job takes now."""
        if job.ended:
            return
        job.uncharged_bytes = 0
        size = job.memory_bytes
        self._add(job.owner, size - job.charged_bytes)
        job.charged_bytes = size

    def remove(self, job: Charged) -> None:
        """Count a job no more."""
        self._jobs[job.owner] -= 1
        self._add(job.owner, -job.charged_bytes)
        job.charged_bytes = 0
        if not self._jobs[job.owner]:
            del self._jobs[job.owner]

    def _add(self, identity: str, more: int) -> None:
        self._total_bytes += more
        self._bytes[identity] += more
        if not self._bytes[identity]:
            del self._bytes[identity]  # there may be any number of identities, one after the other


def _full(whose: str, option: str, taken: int, more: int, most: int) -> str:
    return (
        f"{whose} take {taken / MIB:.1f} MiB, and this may need {more / MIB:.1f} MiB more of {most / MIB:.1f} MiB; "
        f"delete jobs, give them fewer workers, or see --max-{option}-bytes"
    )
