import contextlib

from hypothesis import given
from hypothesis import strategies as st

from dbw_controller.core.diagnosis import Diagnosis, FindingKind
from dbw_controller.core.errors import JobError
from dbw_controller.core.job import Job
from dbw_controller.core.reports import GradientMoments, Membership, Report
from dbw_controller.core.spec import JobSpec, SyncMode
from tests.unit.controller.core import test_job_properties as properties
from tests.unit.controller.core.diagnosis.server import Server, observe, told


def test_a_mistake_in_repeated_reports_counts_once() -> None:
    server = Server(repeats=True, change=told(loss=None)).run(21)
    assert [finding.iterations for finding in server.findings] == [20]


@given(st.lists(properties.reports, max_size=12), st.sampled_from(SyncMode))
def test_whatever_is_reported_can_be_diagnosed(reports: list[Report], sync_mode: SyncMode) -> None:
    job, diagnosis = Job(JobSpec(), Membership(3, [0, 1, 2])), Diagnosis(sync_mode)
    for report in reports:
        with contextlib.suppress(JobError):
            observe(job, diagnosis, report)
    assert diagnosis.iterations <= len(reports)
    for finding in diagnosis.findings():
        assert finding.message.endswith(".")
        assert 1 <= finding.iterations <= diagnosis.iterations


def test_the_most_serious_finding_comes_first() -> None:
    worse = told(moments=GradientMoments(-1.0), learning_rate=None)
    assert Server(change=worse).run(6).kinds == [FindingKind.MOMENTS_IMPOSSIBLE, FindingKind.INPUT_MISSING]
