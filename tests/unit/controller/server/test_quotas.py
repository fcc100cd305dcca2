from dataclasses import dataclass

import pytest

from dbw_controller.core.errors import LimitReachedError
from dbw_controller.server.quotas import MIB, UNCHARGED_BYTES, JobLimits, Quotas


@dataclass
class Job:
    """What takes memory."""

    owner: str
    memory_bytes: int
    charged_bytes: int = 0
    uncharged_bytes: int = 0
    ended: bool = False


def refusal(quotas: Quotas, identity: str, more: int) -> str | None:
    try:
        quotas.require_room(identity, more)
    except LimitReachedError as error:
        return error.limit
    return None


def test_what_jobs_take_is_counted_by_identity_and_in_all() -> None:
    quotas = Quotas(JobLimits(identity_bytes=100, total_bytes=150))
    quotas.add(Job("alice", 80))
    assert refusal(quotas, "alice", 20) is None
    assert refusal(quotas, "alice", 21) == "max_identity_bytes"
    assert refusal(quotas, "bob", 70) is None
    assert refusal(quotas, "bob", 71) == "max_total_bytes"
    assert refusal(quotas, "bob", 101) == "max_identity_bytes"


def test_an_identity_has_not_more_jobs_than_allowed() -> None:
    quotas, first = Quotas(JobLimits(identity_jobs=2)), Job("alice", 1)
    for job in (first, Job("alice", 1)):
        quotas.require_job("alice", 1)
        quotas.add(job)
    with pytest.raises(LimitReachedError) as refused:
        quotas.require_job("alice", 1)
    assert refused.value.limit == "max_identity_jobs"
    quotas.require_job("bob", 1)
    quotas.remove(first)
    quotas.require_job("alice", 1)


def test_jobs_that_grow_and_go_give_back_what_they_took() -> None:
    quotas, job = Quotas(JobLimits(identity_bytes=100)), Job("alice", 10)
    quotas.add(job)
    job.memory_bytes = 90
    quotas.charge(job)
    assert refusal(quotas, "alice", 11) == "max_identity_bytes"
    job.ended = True  # what is still done with it counts no more
    quotas.remove(job)
    quotas.charge(job)
    assert refusal(quotas, "alice", 100) is None


def test_room_is_kept_for_as_long_as_something_takes() -> None:
    quotas = Quotas(JobLimits(identity_bytes=100))
    with quotas.reserved("alice", 60):
        assert refusal(quotas, "alice", 41) == "max_identity_bytes"
        with pytest.raises(LimitReachedError), quotas.reserved("alice", 50):
            raise AssertionError("unreachable")
    assert refusal(quotas, "alice", 100) is None


def test_what_needs_no_more_is_never_refused() -> None:
    quotas = Quotas(JobLimits(identity_bytes=1))
    quotas.add(Job("alice", 10))  # that was there before the limit
    assert refusal(quotas, "alice", 0) is None
    assert refusal(quotas, "alice", 1) == "max_identity_bytes"


def test_callers_without_an_identity_have_the_totals_only() -> None:
    quotas = Quotas(JobLimits(identity_jobs=1, identity_bytes=10, total_bytes=100))
    for _ in range(3):
        quotas.require_job("", 20)
        quotas.add(Job("", 20))
    assert refusal(quotas, "", 41) == "max_total_bytes"


def test_a_job_that_grows_little_by_little_is_counted_now_and_then() -> None:
    quotas, job = Quotas(JobLimits(identity_bytes=4 * MIB)), Job("alice", MIB)
    quotas.add(job)
    job.memory_bytes = 3 * MIB
    quotas.grown(job, UNCHARGED_BYTES - 1)
    quotas.require_room("alice", 2 * MIB)
    quotas.grown(job, 1)
    assert refusal(quotas, "alice", 2 * MIB) == "max_identity_bytes"
