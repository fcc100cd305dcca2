import numpy as np

from dbw_controller.core.reports import Arrivals, Membership, Report
from dbw_controller.core.spec import SyncMode
from dbw_controller.server.recent_reports import MAX_ARRIVALS_A_WORKER, MAX_ITERATIONS, MAX_REPORTS, RecentReports
from tests.jobs import full_report, new_job


def test_reports_of_the_last_iterations_are_kept() -> None:
    job, recent = new_job(), RecentReports()
    for iteration in range(2 * MAX_ITERATIONS):
        report, before = full_report(iteration), job.decision()
        recent.add(report, before, job.report(report), job.membership)
    assert len(recent) == MAX_ITERATIONS
    assert recent.diagnose(SyncMode.PUSH_WAIT).iterations == MAX_ITERATIONS


def test_many_reports_of_one_iteration_leave_room_for_no_more_than_there_is() -> None:
    job, recent = new_job(), RecentReports()
    for _ in range(MAX_REPORTS + 10):
        recent.add(Report(), job.decision(), None, job.membership)
    assert len(recent) == MAX_REPORTS


def test_large_reports_are_kept_as_long_as_there_is_room_for_their_arrivals() -> None:
    job, recent = new_job(workers=16), RecentReports()
    room = 16 * MAX_ARRIVALS_A_WORKER
    for _ in range(3):
        recent.add(Report([Arrivals(0, np.ones(room // 2))]), job.decision(), None, job.membership)
    assert len(recent) == 2
    recent.add(Report([Arrivals(0, np.ones(room + 1))]), job.decision(), None, job.membership)
    assert len(recent) == 0, "one that is too large is not kept at all"


def test_batches_of_arrivals_and_memberships_take_room_as_well() -> None:
    job, recent = new_job(workers=16), RecentReports()
    for _ in range(3):
        recent.add(Report([Arrivals(0, np.ones(1))] * (MAX_REPORTS // 2)), job.decision(), None, job.membership)
    assert len(recent) == 2
    recent.clear()
    room = 16 * MAX_ARRIVALS_A_WORKER
    membership = Membership(room // 2, range(room // 2))
    for _ in range(3):
        recent.add(Report(membership=membership), job.decision(), None, job.membership)
    assert len(recent) == 2


def test_nothing_is_left_after_reports_are_cleared() -> None:
    job, recent = new_job(), RecentReports()
    recent.add(full_report(0), job.decision(), None, job.membership)
    recent.clear()
    assert recent.diagnose(SyncMode.PUSH_WAIT).iterations == 0
