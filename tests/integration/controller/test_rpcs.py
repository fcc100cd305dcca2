"""Every rpc of a real controller, and every way that it fails."""

import math
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.error_pb2 import ErrorReason
from dbw.v1.iteration_pb2 import (
    DECISION_REASON_BEST_RATE,
    DECISION_REASON_FIRST_ITERATION,
    DECISION_REASON_FIXED,
    Arrivals,
    GradientMoments,
    IterationSummary,
    Membership,
)
from dbw.v1.job_pb2 import CustomPolicy, DbwPlusPolicy, DbwPolicy, Estimation, JobSpec, Policy, StaticPolicy
from tests.reports import create, failure, summary, train, whole_iteration
from tests.servers import Controller, controller

STATIC = JobSpec(policy=Policy(static=StaticPolicy(k=3)))


@pytest.fixture(scope="module")
def server() -> Iterator[Controller]:
    with controller("--max-workers", "1000") as running:
        yield running


def end(stub: ControllerServiceStub, session: str, iteration: int, **fields: Any) -> pb.EndIterationResponse:
    request = pb.EndIterationRequest(job="resnet", session=session, summary=summary(iteration), **fields)
    return stub.EndIteration(request)


def test_a_job_is_created_with_defaults_filled_in(stub: ControllerServiceStub) -> None:
    request = pb.CreateJobRequest(job="resnet", membership=Membership(live_workers=4), iteration=7)
    job = stub.CreateJob(request).job
    assert (job.name, job.owner, job.membership.live_workers, job.learnt_iterations) == ("resnet", "", 4, 0)
    assert job.spec.policy.dbw.loss_increase_factor == 1.01
    assert (job.spec.k_min, job.spec.estimation.averaging_window) == (1, 5)
    assert (job.decision.iteration, job.decision.k) == (7, 4)
    assert job.decision.reason == DECISION_REASON_FIRST_ITERATION
    assert not job.HasField("loss")
    assert job.create_time.seconds > 0


@pytest.mark.parametrize("rule", ["dbw", "blind_dbw", "static", "sync", "adasync"])
def test_every_policy_can_be_asked_for(stub: ControllerServiceStub, rule: str) -> None:
    policy = Policy(static=StaticPolicy(k=3)) if rule == "static" else Policy()
    getattr(policy, rule).SetInParent()
    session = create(stub, spec=JobSpec(policy=policy))
    assert stub.GetJob(pb.GetJobRequest(job="resnet")).job.spec.policy.WhichOneof("rule") == rule
    assert len(train(stub, "resnet", session, range(5))) == 5


def test_the_stream_and_single_calls_decide_the_same(stub: ControllerServiceStub) -> None:
    one, other = create(stub, "one"), create(stub, "other")
    decisions = train(stub, "one", one, range(20))
    outbox: SimpleQueue[Any] = SimpleQueue()
    answers = stub.Coordinate(iter(outbox.get, None))
    k = 4
    for iteration, expected in enumerate(decisions):
        request = whole_iteration("other", other, iteration, k)
        late = pb.CoordinateRequest(job="other", session=other, arrivals=request.arrivals)
        outbox.put(late)  # gets no answer
        outbox.put(pb.CoordinateRequest(job="other", session=other, summary=request.summary))
        answer = next(answers).decision
        assert answer == expected
        k = answer.k
    outbox.put(None)
    assert list(answers) == []
    assert decisions[-1].reason == DECISION_REASON_BEST_RATE


def test_a_repeated_request_gets_the_same_answer_and_counts_once(stub: ControllerServiceStub) -> None:
    session = create(stub)
    first = end(stub, session, 0, include_estimates=True)
    assert end(stub, session, 0, include_estimates=True) == first
    assert stub.GetJob(pb.GetJobRequest(job="resnet")).job.learnt_iterations == 1


def test_estimates_come_when_asked_for(stub: ControllerServiceStub) -> None:
    session = create(stub)
    train(stub, "resnet", session, range(10))
    assert not stub.GetDecision(pb.GetDecisionRequest(job="resnet")).decision.HasField("estimates")
    request = pb.GetDecisionRequest(job="resnet", iteration=9, include_estimates=True)
    estimates = stub.GetDecision(request).decision.estimates
    assert [len(column) for column in (estimates.gains, estimates.durations_seconds)] == [4, 4]
    assert estimates.HasField("smoothness")
    assert "gain per second" in estimates.explanation


def test_late_arrivals_and_membership_are_reported_by_themselves(stub: ControllerServiceStub) -> None:
    session = create(stub)
    end(stub, session, 0)
    arrivals = [Arrivals(iteration=0, preceding=3, seconds=[9.0], workers=[2])]
    membership = Membership(live_workers=2, workers=[5, 8])
    stub.Report(pb.ReportRequest(job="resnet", session=session, arrivals=arrivals, membership=membership))
    assert stub.GetJob(pb.GetJobRequest(job="resnet")).job.membership == membership
    assert end(stub, session, 1).decision.k <= 2


def test_jobs_are_listed_by_name_in_pages(stub: ControllerServiceStub) -> None:
    for name in ("c", "a", "b"):
        create(stub, name)
    page = stub.ListJobs(pb.ListJobsRequest(page_size=2))
    assert [job.name for job in page.jobs] == ["a", "b"]
    rest = stub.ListJobs(pb.ListJobsRequest(page_size=2, page_token=page.next_page_token))
    assert [job.name for job in rest.jobs] == ["c"]
    assert rest.next_page_token == ""


def test_a_watcher_sees_the_job_and_then_every_iteration_until_it_is_deleted(stub: ControllerServiceStub) -> None:
    session = create(stub)
    responses = stub.WatchJob(pb.WatchJobRequest(job="resnet", include_estimates=True))
    first = next(responses)
    assert not first.HasField("summary")
    for iteration in range(3):
        decision = end(stub, session, iteration).decision
        seen = next(responses)
        assert seen.summary == summary(iteration)
        assert (seen.job.decision.k, seen.job.decision.iteration) == (decision.k, iteration + 1)
        assert seen.job.decision.HasField("estimates")
    stub.DeleteJob(pb.DeleteJobRequest(job="resnet"))
    assert list(responses) == []


def test_a_diagnosis_names_what_the_parameter_server_does_wrong(stub: ControllerServiceStub) -> None:
    session = create(stub)
    for iteration in range(30):
        told = summary(iteration, moments=GradientMoments(mean_squared_norm=9.0, sum_squared_norms=1.0))
        stub.EndIteration(pb.EndIterationRequest(job="resnet", session=session, summary=told))
    diagnosis = stub.DiagnoseJob(pb.DiagnoseJobRequest(job="resnet"))
    assert diagnosis.iterations == 30
    assert pb.FINDING_KIND_MOMENTS_IMPOSSIBLE in [finding.kind for finding in diagnosis.findings]


def pieces_of(stub: ControllerServiceStub, job: str) -> list[pb.ExportJobStateResponse]:
    return list(stub.ExportJobState(pb.ExportJobStateRequest(job=job)))


def import_requests(
    pieces: list[pb.ExportJobStateResponse], job: str, session: str, **header: Any
) -> Iterator[pb.ImportJobStateRequest]:
    changed = pb.JobStateHeader()
    changed.CopyFrom(pieces[0].header)
    for name, value in header.items():
        setattr(changed, name, value)
    yield pb.ImportJobStateRequest(job=job, session=session, header=changed, data=pieces[0].data)
    for piece in pieces[1:]:
        yield pb.ImportJobStateRequest(data=piece.data)


def test_what_a_job_has_learnt_goes_to_another(stub: ControllerServiceStub) -> None:
    train(stub, "teacher", create(stub, "teacher"), range(20))
    session = create(stub, "pupil")
    pupil = stub.ImportJobState(import_requests(pieces_of(stub, "teacher"), "pupil", session)).job
    assert (pupil.name, pupil.learnt_iterations) == ("pupil", 20)
    assert pupil.decision.iteration == 0
    assert pupil.decision.reason == DECISION_REASON_BEST_RATE


def test_a_large_state_travels_in_pieces(stub: ControllerServiceStub) -> None:
    session = create(stub, workers=900)
    for iteration in range(200):
        seconds = [1.0 + i / 900 for i in range(900)]
        told = IterationSummary(iteration=iteration, k=900 - 4 * iteration, duration_seconds=1.5)
        arrivals = [Arrivals(iteration=iteration, seconds=seconds)]
        request = pb.EndIterationRequest(job="resnet", session=session, arrivals=arrivals, summary=told)
        stub.EndIteration(request)
    pieces = pieces_of(stub, "resnet")
    assert len(pieces) > 1
    assert sum(len(piece.data) for piece in pieces) == pieces[0].header.total_bytes
    assert stub.ImportJobState(import_requests(pieces, "resnet", session)).job.learnt_iterations == 200


def test_a_job_that_resumes_goes_back(stub: ControllerServiceStub) -> None:
    train(stub, "resnet", create(stub), range(20))
    request = pb.CreateJobRequest(job="resnet", membership=Membership(live_workers=4), iteration=10)
    job = stub.CreateJob(request).job
    assert (job.decision.iteration, job.learnt_iterations) == (10, 20)


def test_a_job_that_attaches_in_the_middle_stays_where_it_is(stub: ControllerServiceStub) -> None:
    train(stub, "resnet", create(stub), range(20))
    request = pb.CreateJobRequest(job="resnet", membership=Membership(live_workers=4))
    assert stub.CreateJob(request).job.decision.iteration == 20


def test_an_unset_policy_is_the_same_as_any(stub: ControllerServiceStub) -> None:
    create(stub, spec=STATIC)
    create(stub)
    assert stub.GetJob(pb.GetJobRequest(job="resnet")).job.decision.reason == DECISION_REASON_FIXED


Call = Callable[[ControllerServiceStub, str], Any]


def with_summary(**fields: Any) -> Call:
    return lambda stub, session: stub.EndIteration(
        pb.EndIterationRequest(job="resnet", session=session, summary=summary(0, **fields))
    )


def with_arrivals(*arrivals: Arrivals) -> Call:
    return lambda stub, session: stub.Report(pb.ReportRequest(job="resnet", session=session, arrivals=arrivals))


def with_spec(**fields: Any) -> Call:
    return lambda stub, session: create(stub, "other", spec=JobSpec(**fields))


FINE = Arrivals(iteration=0, seconds=[1.0])
INVALID: dict[str, Call] = {
    "job": lambda stub, session: create(stub, "a/b"),
    "membership": lambda stub, session: stub.CreateJob(pb.CreateJobRequest(job="other")),
    "iteration": lambda stub, session: create(stub, "other", iteration=2**63),
    "membership.workers": lambda stub, session: stub.CreateJob(
        pb.CreateJobRequest(job="other", membership=Membership(live_workers=2, workers=[1, 1]))
    ),
    "spec.k_min": with_spec(k_min=0),
    "spec.k_max": with_spec(k_min=3, k_max=2),
    "spec.estimation.averaging_window": with_spec(estimation=Estimation(averaging_window=0)),
    "spec.estimation.sample_half_life_iterations": with_spec(estimation=Estimation(sample_half_life_iterations=-1)),
    "spec.sync_mode": with_spec(sync_mode=99),
    "spec.policy.rule": with_spec(policy=Policy()),
    "spec.policy.dbw.loss_increase_factor": with_spec(policy=Policy(dbw=DbwPolicy(loss_increase_factor=0.5))),
    "spec.policy.static.k": with_spec(policy=Policy(static=StaticPolicy())),
    "spec.policy.custom.name": with_spec(policy=Policy(custom=CustomPolicy(name="nonsense"))),
    "spec.policy.custom.parameters": with_spec(policy=Policy(custom=CustomPolicy(name="dbw", parameters={"x": 1.0}))),
    "summary": lambda stub, session: stub.EndIteration(pb.EndIterationRequest(job="resnet", session=session)),
    "summary.iteration": lambda stub, session: stub.EndIteration(
        pb.EndIterationRequest(job="resnet", session=session, summary=IterationSummary(iteration=2**63, k=1))
    ),
    "summary.k": with_summary(k=0, duration_seconds=1.0),
    "summary.duration_seconds": with_summary(duration_seconds=math.nan),
    "summary.end_cause": with_summary(end_cause=99),
    "arrivals[0].seconds": with_arrivals(Arrivals(iteration=0, seconds=[1.0, -1.0])),
    "arrivals[1].seconds": with_arrivals(FINE, Arrivals(iteration=0, seconds=[math.inf])),
    "arrivals[0].workers": with_arrivals(Arrivals(iteration=0, seconds=[1.0], workers=[1, 2])),
    "header": lambda stub, session: stub.ImportJobState(
        iter([pb.ImportJobStateRequest(job="resnet", session=session, data=b"x")])
    ),
}


@pytest.mark.parametrize("field", INVALID)
def test_a_value_that_is_not_allowed_is_named(stub: ControllerServiceStub, field: str) -> None:
    session = create(stub)
    before = stub.GetJob(pb.GetJobRequest(job="resnet")).job.decision
    with pytest.raises(grpc.RpcError) as error:
        INVALID[field](stub, session)
    code, reason, _, (bad_request,) = failure(error.value)
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE")
    (violation,) = bad_request.field_violations
    assert violation.field == field
    assert "must be" in violation.description
    assert stub.GetJob(pb.GetJobRequest(job="resnet")).job.decision == before
    assert [job.name for job in stub.ListJobs(pb.ListJobsRequest()).jobs] == ["resnet"]


def test_dbw_plus_lets_no_straggler_hold_an_iteration_up(stub: ControllerServiceStub) -> None:
    session = create(stub, spec=JobSpec(policy=Policy(dbw_plus=DbwPlusPolicy())))
    for iteration in range(5):
        arrivals = [Arrivals(iteration=iteration, seconds=[1.0, 1.1, 1.2, 9.0], workers=[2, 0, 1, 3])]
        decision = end(stub, session, iteration, arrivals=arrivals).decision
    assert decision.k < 4
    assert 1.0 < decision.deadline_seconds < 9.0
    assert stub.GetJob(pb.GetJobRequest(job="resnet")).job.spec.policy.dbw_plus.deadlines


def replaced(stub: ControllerServiceStub, session: str) -> Any:
    create(stub)
    return end(stub, session, 0)


def stale(stub: ControllerServiceStub, session: str) -> Any:
    train(stub, "resnet", session, range(5))
    return end(stub, session, 2)


def damaged(stub: ControllerServiceStub, session: str, **header: Any) -> Any:
    return stub.ImportJobState(import_requests(pieces_of(stub, "resnet"), "resnet", session, **header))


REFUSED: dict[str, tuple[grpc.StatusCode, str, Call]] = {
    "an unknown job": (
        grpc.StatusCode.NOT_FOUND,
        "JOB_NOT_FOUND",
        lambda stub, session: stub.GetJob(pb.GetJobRequest(job="nobody")),
    ),
    "deleting an unknown job": (
        grpc.StatusCode.NOT_FOUND,
        "JOB_NOT_FOUND",
        lambda stub, session: stub.DeleteJob(pb.DeleteJobRequest(job="nobody")),
    ),
    "another specification": (
        grpc.StatusCode.ALREADY_EXISTS,
        "JOB_DIFFERS",
        lambda stub, session: create(stub, spec=STATIC),
    ),
    "a decision of the future": (
        grpc.StatusCode.NOT_FOUND,
        "DECISION_NOT_FOUND",
        lambda stub, session: stub.GetDecision(pb.GetDecisionRequest(job="resnet", iteration=99)),
    ),
    "a stale iteration": (grpc.StatusCode.FAILED_PRECONDITION, "STALE_ITERATION", stale),
    "an unknown session": (
        grpc.StatusCode.NOT_FOUND,
        "SESSION_NOT_FOUND",
        lambda stub, session: end(stub, "nonsense", 0),
    ),
    "a replaced session": (grpc.StatusCode.ABORTED, "SESSION_REPLACED", replaced),
    "too many workers": (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "LIMIT_REACHED",
        lambda stub, session: create(stub, "large", workers=1001),
    ),
    "too many messages of arrivals": (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "LIMIT_REACHED",
        lambda stub, session: with_arrivals(*[Arrivals()] * 5000)(stub, session),
    ),
    "a state that was cut short": (
        grpc.StatusCode.DATA_LOSS,
        "STATE_DAMAGED",
        lambda stub, session: damaged(stub, session, total_bytes=10_000),
    ),
    "a state with another digest": (
        grpc.StatusCode.DATA_LOSS,
        "STATE_DAMAGED",
        lambda stub, session: damaged(stub, session, sha256=bytes(32)),
    ),
    "a state of a newer format": (
        grpc.StatusCode.FAILED_PRECONDITION,
        "STATE_FORMAT_UNKNOWN",
        lambda stub, session: damaged(stub, session, format_version=99),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_has_its_status_and_reason(stub: ControllerServiceStub, case: str) -> None:
    expected_code, expected_reason, call = REFUSED[case]
    session = create(stub)
    with pytest.raises(grpc.RpcError) as error:
        call(stub, session)
    code, reason, metadata, details = failure(error.value)
    assert (code, reason) == (expected_code, expected_reason)
    assert f"ERROR_REASON_{reason}" in ErrorReason.keys()  # noqa: SIM118 (an enum wrapper, no dictionary)
    if reason == "STALE_ITERATION":
        assert metadata == {"iteration": "5"}
    if reason == "LIMIT_REACHED":
        assert [type(detail).__name__ for detail in details] == ["QuotaFailure", "RetryInfo"]
        assert details[1].retry_delay.seconds > 0


def test_a_missing_job_may_be_deleted_where_that_is_fine(stub: ControllerServiceStub) -> None:
    stub.DeleteJob(pb.DeleteJobRequest(job="nobody", allow_missing=True))


def test_a_bad_message_ends_its_stream_and_no_other(stub: ControllerServiceStub) -> None:
    one, other = create(stub, "one"), create(stub, "other")
    outboxes: list[SimpleQueue[Any]] = [SimpleQueue(), SimpleQueue()]
    bad, good = (stub.Coordinate(iter(outbox.get, None)) for outbox in outboxes)
    outboxes[1].put(whole_iteration("other", other, 0))
    assert next(good).decision.iteration == 1
    outboxes[0].put(pb.CoordinateRequest(job="one", session=one, summary=summary(0, loss=1.0)))
    assert next(bad).decision.iteration == 1
    outboxes[0].put(pb.CoordinateRequest(job="one", session=one, arrivals=[Arrivals(seconds=[-1.0])]))
    with pytest.raises(grpc.RpcError) as error:
        next(bad)
    assert failure(error.value)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE")
    outboxes[1].put(whole_iteration("other", other, 1))
    assert next(good).decision.iteration == 2
    for outbox in outboxes:
        outbox.put(None)


def test_a_stream_serves_one_job(stub: ControllerServiceStub) -> None:
    one, other = create(stub, "one"), create(stub, "other")
    requests = iter([whole_iteration("one", one, 0), whole_iteration("other", other, 0)])
    answers = stub.Coordinate(requests)
    next(answers)
    with pytest.raises(grpc.RpcError) as error:
        next(answers)
    assert failure(error.value)[3][0].field_violations[0].field == "job"


def test_a_stream_of_a_deleted_job_ends(stub: ControllerServiceStub) -> None:
    session = create(stub)
    outbox: SimpleQueue[Any] = SimpleQueue()
    answers = stub.Coordinate(iter(outbox.get, None))
    outbox.put(whole_iteration("resnet", session, 0))
    next(answers)
    stub.DeleteJob(pb.DeleteJobRequest(job="resnet"))
    outbox.put(whole_iteration("resnet", session, 1))
    with pytest.raises(grpc.RpcError) as error:
        next(answers)
    assert failure(error.value)[1] == "JOB_NOT_FOUND"
    outbox.put(None)


def test_a_bug_is_internal_with_a_correlation_id_and_no_traceback(tmp_path: Any) -> None:
    """A policy that somebody registered fails: the caller gets an id, and only the log has the traceback."""
    plugin = tmp_path / "sitecustomize.py"
    plugin.write_text(
        "from dbw_controller.core.policies import Sync\n"
        "def choose(self, seen):\n"
        "    if seen.learnt_iterations: raise RuntimeError('a secret of the implementation')\n"
        "    return original(self, seen)\n"
        "original, Sync.choose = Sync.choose, choose\n"
    )
    with controller("--default-policy", "sync", PYTHONPATH=str(tmp_path)) as server, server.stub() as stub:
        session = create(stub)
        with pytest.raises(grpc.RpcError) as error:
            end(stub, session, 0)
        code, reason, metadata, _ = failure(error.value)
        assert (code, reason) == (grpc.StatusCode.INTERNAL, "BUG")
        assert isinstance(error.value, grpc.Call)
        assert "secret" not in (error.value.details() or "")
        line = server.wait_for_log("a bug", correlation_id=metadata["correlation_id"], job="resnet")
        assert "a secret of the implementation" in line["traceback"]
        assert end(stub, session, 0).decision.k == 4, "a retry finds a decision"
