import pytest
from msgspec.structs import replace

from dbw_controller.core.diagnosis import Diagnosis, FindingKind
from dbw_controller.core.policies import Policy, Static, Sync
from dbw_controller.core.reports import Membership, Report
from dbw_controller.core.spec import SyncMode
from tests.jobs import full_report, new_job
from tests.unit.controller.core.diagnosis.server import POLICIES, Server, changed_arrivals, observe


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_workers_may_come_and_go(policy: Policy, numbers: bool, after: bool) -> None:
    server = Server(policy=policy, numbers=numbers, tells_membership_after=after)
    for workers in (8, 4, 6, 1, 12, 12, 3) * 5:
        for _ in range(7):
            server.step()
        server.step(server.replace_workers(workers))  # told at the end of the first iteration with them
    assert server.findings == []


def test_a_worker_that_dies_may_have_arrived_before() -> None:
    server = Server(4, Sync(), numbers=True)
    for gone in range(30):
        server.send(Report(membership=Membership(3, [0, 1, 2])))
        server.step()  # all four are averaged
        server.send(Report(membership=Membership(4, [0, 1, 2, 3])))
        server.step()
        assert server.findings == [], gone


def test_fast_workers_may_compute_twice_where_they_pull() -> None:
    job, diagnosis = new_job(policy=Static(4), sync_mode=SyncMode.PULL), Diagnosis(SyncMode.PULL)
    for t in range(200):
        observe(job, diagnosis, full_report(t, 4, (0.5, 1.0, 1.1, 1.2, 1.3), duration_seconds=1.2))
    assert diagnosis.findings() == []


def test_arrivals_of_workers_that_are_not_alive_are_found() -> None:
    change = changed_arrivals(lambda a: None if a.workers is None else replace(a, workers=[w + 3 for w in a.workers]))
    server = Server(change=change).run(50)
    assert server.kinds == [FindingKind.MEMBERSHIP_OUT_OF_DATE]
    assert server.findings[0].last_iteration == 48


def test_more_arrivals_than_workers_are_found() -> None:
    server = Server(8, Static(6), numbers=False)
    server.job.report(Report(membership=Membership(4)))
    assert FindingKind.MEMBERSHIP_OUT_OF_DATE in server.run(50).kinds
