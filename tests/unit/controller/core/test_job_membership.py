"""Workers come and go."""

import numpy as np
import pytest

from dbw_controller.core.policies import Static, Sync
from dbw_controller.core.reports import Arrivals, Membership, Report
from tests.jobs import full_report, new_job, seconds, summary, trained_job


def test_workers_may_join_before_the_first_iteration() -> None:
    job = new_job(workers=0)
    assert (job.decision().k, job.decision().live_workers) == (1, 0)
    job.report(Report(membership=Membership(4)))
    job.report(full_report(0))
    assert seconds(job)[-1] == 3.0


def test_membership_counts_from_the_next_decision_on() -> None:
    job = trained_job(policy=Sync())
    assert job.report(Report(membership=Membership(3))) is None
    assert job.decision().k == 4
    decision = job.report(full_report(6, k=3))
    assert decision is not None
    assert (decision.k, decision.live_workers) == (3, 3)
    decision = job.report(Report(summary=summary(7), membership=Membership(6)))
    assert decision is not None
    assert decision.k == 6


def test_what_was_learnt_stays_when_workers_come_and_go() -> None:
    job = trained_job()
    before = seconds(job)
    for workers in (2, 0, 2, 1, 6):
        job.report(Report(membership=Membership(workers)))
        assert seconds(job)[:4] == before
    job.report(Report(membership=Membership(4)))
    decision = job.report(full_report(6))
    assert decision is not None
    assert decision.estimates.durations is not None
    assert len(decision.estimates.durations.seconds) == 4


@pytest.mark.parametrize(("workers", "counts_for"), [(4, 20), (5, 4), (3, 4), (8, 1), (2, 2), (0, 20)])
def test_what_was_learnt_with_other_numbers_of_workers_counts_less(workers: int, counts_for: int) -> None:
    job = new_job(policy=Static(4))
    for iteration in range(20):
        job.report(full_report(iteration, times=(1.0, 1.0, 1.0, 1.0)))
    job.report(Report(membership=Membership(workers)))
    job.report(Report(membership=Membership(workers)))  # repeating it does no harm
    job.report(full_report(20, times=(4.0, 4.0, 4.0, 4.0)))
    assert seconds(job)[3] == pytest.approx((counts_for * 1.0 + 4.0) / (counts_for + 1))


def test_workers_that_leave_and_come_back_before_anything_is_learnt_change_nothing() -> None:
    job = trained_job()
    for workers in (0, 1, 2, 3, 4):
        job.report(Report(membership=Membership(workers)))
    other = trained_job()
    for each in (job, other):
        each.report(full_report(6))
    assert seconds(job) == seconds(other)


def test_arrivals_of_workers_that_the_same_report_tells_of_count_and_count_once() -> None:
    job = new_job(policy=Static(4))
    times = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    report = Report([Arrivals(0, times)], summary(0), Membership(6))
    job.report(report)
    before = job.snapshot()
    assert job.durations.estimate().longest[-1] == 6.0
    job.report(report)
    assert job.snapshot() == before


def test_without_workers_k_is_1() -> None:
    job = trained_job()
    decision = job.report(Report(summary=summary(6), membership=Membership(0)))
    assert decision is not None
    assert (decision.k, decision.live_workers) == (1, 0)
