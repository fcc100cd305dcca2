import pytest
from msgspec.structs import replace

from dbw_controller.core.diagnosis import Diagnosis, FindingKind
from dbw_controller.core.job import LATE_ITERATIONS, Job
from dbw_controller.core.policies import BlindDbw, Dbw, Policy, Static
from dbw_controller.core.reports import Membership, Report
from dbw_controller.core.spec import JobSpec
from tests.jobs import full_report
from tests.unit.controller.core.diagnosis.server import Server, observe


def test_a_very_slow_worker_is_not_taken_for_missing_late_arrivals() -> None:
    job, diagnosis = Job(JobSpec(policy=Static(2)), Membership(3, [0, 1, 2])), Diagnosis()
    for t in range(5 * LATE_ITERATIONS):
        observe(job, diagnosis, full_report(t, 2, (1.0, 1.1), duration_seconds=1.1))
    assert diagnosis.findings() == []


def test_workers_with_numbers_show_soon_that_late_arrivals_are_missing_even_if_all_are_often_waited_for() -> None:
    job, diagnosis = Job(JobSpec(policy=Static(3)), Membership(4, range(4))), Diagnosis()
    for t in range(60):
        k = 3 if t % 2 else 4
        workers = [(t + i) % 4 for i in range(k)]
        report = full_report(t, k, (1.0, 1.1, 1.2, 1.3)[:k], duration_seconds=0.9 + k / 10, fallback=True)
        observe(job, diagnosis, replace(report, arrivals=[replace(report.arrivals[0], workers=workers)]))
    assert [finding.kind for finding in diagnosis.findings()] == [FindingKind.LATE_ARRIVALS_MISSING]


def only_in_time(report: Report) -> Report:
    ended = {} if report.summary is None else {report.summary.iteration: report.summary.k}
    kept = [arrivals for arrivals in report.arrivals if arrivals.iteration in ended]
    return replace(report, arrivals=kept)


@pytest.mark.parametrize("policy", [Dbw(), BlindDbw(), Static(3)], ids=repr)
@pytest.mark.parametrize("numbers", [False, True])
def test_missing_late_arrivals_are_found(policy: Policy, numbers: bool) -> None:
    server = Server(16, policy, numbers=numbers, change=only_in_time).run(250)
    assert server.kinds == [FindingKind.LATE_ARRIVALS_MISSING]
    assert server.findings[0].last_iteration == 248
    server.change = lambda report: report
    assert server.run(20).findings[0].last_iteration < 250
