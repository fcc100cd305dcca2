import pytest
from msgspec.structs import replace

from dbw_controller.core.diagnosis import Diagnosis, FindingKind
from dbw_controller.core.policies import Static, Sync
from tests.jobs import full_report, new_job
from tests.unit.controller.core.diagnosis.server import Change, Server, changed_arrivals, changed_summary, observe


def test_lost_gradients_may_have_arrived() -> None:
    job, diagnosis = new_job(policy=Sync()), Diagnosis()
    for t in range(200):
        times = (1.0, 1.1, 1.2, 3.0)  # the last was rejected: only then it is clear that no more will come
        observe(job, diagnosis, full_report(t, 3, times, duration_seconds=3.0, lost_gradients=1))
    assert diagnosis.findings() == []


@pytest.mark.parametrize("seed", range(5))
def test_the_update_may_be_part_of_the_duration(seed: int) -> None:
    longer = changed_summary(lambda s: {"duration_seconds": s.duration_seconds + 0.3})
    assert Server(16, Static(8), seed, update_seconds=0.4, change=longer).run(1000).findings == []


def test_a_k_that_is_too_large_for_the_arrivals_is_found() -> None:
    server = Server(policy=Static(3), change=changed_summary(lambda s: {"k": s.k + 1, "moments": None})).run(50)
    assert server.kinds == [FindingKind.K_NOT_RESPECTED, FindingKind.ARRIVALS_INCONSISTENT]


def test_a_k_that_is_too_small_for_the_arrivals_is_found() -> None:
    server = Server(policy=Static(5), change=changed_summary(lambda s: {"k": s.k - 1, "fallback": True})).run(100)
    assert server.kinds == [FindingKind.ARRIVALS_INCONSISTENT]


@pytest.mark.parametrize("publishes", [False, True])
@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        changed_summary(lambda s: {"duration_seconds": 0.8 * s.duration_seconds}),
        changed_arrivals(lambda a: replace(a, seconds=1e3 * a.seconds)),
        changed_arrivals(lambda a: replace(a, seconds=a.seconds[::-1])),
    ],
    ids=["an end before the k-th arrival", "another unit than the duration's", "times that fall with the rank"],
)
def test_impossible_arrivals_are_found(change: Change, splits: bool, publishes: bool) -> None:
    server = Server(policy=Static(4), splits=splits, publishes=publishes, change=change).run(50)
    assert server.kinds == [FindingKind.ARRIVALS_INCONSISTENT]
