"""What is made of a request keeps nothing of the request itself."""

import gc
from typing import Any

import pytest
from google.protobuf.message import Message

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import Arrivals, IterationSummary, Membership
from dbw_controller.core.job import Job
from dbw_controller.core.policies import Dbw
from dbw_controller.core.reports import Membership as LiveWorkers
from dbw_controller.core.spec import JobSpec
from dbw_controller.server.job_messages import watch_message
from dbw_controller.server.saver import Disk
from dbw_controller.server.served_job import ServedJob
from dbw_controller.wire.messages import report_from
from tests.reports import summary

UNKNOWN = b"\x9a\x3f\x04huge"  # field 1011


def parts_of_messages(value: object) -> list[object]:
    """All that protobuf has made among the objects that a value refers to."""
    seen, unseen, found = set[int](), [value], list[object]()
    while unseen:
        item: Any = unseen.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        if isinstance(item, Message) or type(item).__module__.startswith("google."):
            found.append(item)
        else:
            unseen.extend(gc.get_referents(item))
    return found


@pytest.mark.parametrize("count", [2, 1000])
def test_a_report_refers_to_nothing_of_its_request(count: int) -> None:
    workers = [4, *range(2**32 - count + 1, 2**32)]
    batch = Arrivals(iteration=0, seconds=[1.0] * count, workers=workers)
    members = Membership(live_workers=count, workers=workers)
    request = pb.CoordinateRequest(job="a", arrivals=[batch], summary=summary(0), membership=members)
    report = report_from(request)
    assert list(report.arrivals[0].workers or ()) == workers
    assert parts_of_messages(report) == []
    assert parts_of_messages([report, request.arrivals]), "they would be found"


def test_batches_without_arrivals_are_not_kept() -> None:
    batches = [Arrivals(), Arrivals(iteration=1, seconds=[1.0]), Arrivals(iteration=2)]
    assert [batch.iteration for batch in report_from(pb.ReportRequest(arrivals=batches)).arrivals] == [1]


def test_watchers_are_not_sent_what_nobody_knows() -> None:
    told = IterationSummary.FromString(summary(0).SerializeToString() + UNKNOWN)
    job = Job(JobSpec(Dbw()), LiveWorkers(4))
    shown = watch_message(ServedJob("a", "", job, Disk(None, 1)), told, include_estimates=False).summary
    assert told != summary(0)
    assert shown == summary(0)
