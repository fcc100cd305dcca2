import pytest
from msgspec.structs import replace

from dbw_controller.diagnosis import Diagnosis, FindingKind
from dbw_controller.events import Membership, Report
from dbw_controller.job import LATE_ITERATIONS, Job
from dbw_controller.policies import BlindDbw, Dbw, Policy, Static
from dbw_controller.spec import JobSpec
from tests.jobs import full_report
from tests.unit.controller.diagnosis.server import Server, observe


def test_a_very_slow_worker_is_not_taken_for_missing_late_arrivals() -> None:
    job, diagnosis = Job(JobSpec(policy=Static(2)), Membership(3, [0, 1, 2])), Diagnosis()
    for t in range(5 * LATE_ITERATIONS):
        observe(job, diagnosis, full_report(t, 2, (1.0, 1.1), duration_seconds=1.1))
    assert diagnosis.findings() == []


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
