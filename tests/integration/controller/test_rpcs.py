"""What rpcs of a real controller do beyond what `dbw conformance` checks, which test_conformance.py runs."""

import math
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import (
    DECISION_REASON_FIRST_ITERATION,
    Arrivals,
    IterationSummary,
    Membership,
)
from dbw.v1.job_pb2 import CustomPolicy, DbwPlusPolicy, DbwPolicy, Estimation, JobSpec, Policy, StaticPolicy
from tests.policies import SECRET
from tests.reports import create, failure, summary, train, whole_iteration
from tests.servers import Controller, controller


@pytest.fixture(scope="module")
def server() -> Iterator[Controller]:
    with controller("--max-workers", "1000") as running:
        yield running


def end(stub: ControllerServiceStub, session: str, iteration: int, **fields: Any) -> pb.EndIterationResponse:
    request = pb.EndIterationRequest(job="resnet", session=session, summary=summary(iteration), **fields)
    return stub.EndIteration(request)


def test_a_new_job_has_the_parameters_of_its_policy_a_time_and_no_loss(stub: ControllerServiceStub) -> None:
    job = stub.CreateJob(pb.CreateJobRequest(job="resnet", membership=Membership(live_workers=4))).job
    assert job.spec.policy.dbw.loss_increase_factor == 1.01
    assert (job.decision.k, job.decision.reason) == (4, DECISION_REASON_FIRST_ITERATION)
    assert (job.owner, job.learnt_iterations, job.HasField("loss")) == ("", 0, False)
    assert job.create_time.seconds > 0


@pytest.mark.parametrize("rule", ["dbw", "blind_dbw", "static", "sync", "adasync"])
def test_every_policy_can_be_asked_for(stub: ControllerServiceStub, rule: str) -> None:
    policy = Policy(static=StaticPolicy(k=3)) if rule == "static" else Policy()
    getattr(policy, rule).SetInParent()
    session = create(stub, spec=JobSpec(policy=policy))
    assert stub.GetJob(pb.GetJobRequest(job="resnet")).job.spec.policy.WhichOneof("rule") == rule
    assert len(train(stub, "resnet", session, range(5))) == 5


def test_estimates_come_when_asked_for(stub: ControllerServiceStub) -> None:
    session = create(stub)
    train(stub, "resnet", session, range(10))
    assert not stub.GetDecision(pb.GetDecisionRequest(job="resnet")).decision.HasField("estimates")
    request = pb.GetDecisionRequest(job="resnet", iteration=9, include_estimates=True)
    estimates = stub.GetDecision(request).decision.estimates
    assert [len(column) for column in (estimates.gains, estimates.durations_seconds)] == [4, 4]
    assert estimates.HasField("smoothness")
    assert estimates.explanation


def test_a_watcher_gets_estimates_when_asked_for(stub: ControllerServiceStub) -> None:
    session = create(stub)
    responses = stub.WatchJob(pb.WatchJobRequest(job="resnet", include_estimates=True))
    next(responses)
    end(stub, session, 0)
    assert next(responses).job.decision.HasField("estimates")
    responses.cancel()


def test_a_large_state_travels_in_pieces(stub: ControllerServiceStub) -> None:
    session = create(stub, workers=900)
    for iteration in range(200):
        seconds = [1.0 + i / 900 for i in range(900)]
        told = IterationSummary(iteration=iteration, k=900 - 4 * iteration, duration_seconds=1.5)
        arrivals = [Arrivals(iteration=iteration, seconds=seconds)]
        request = pb.EndIterationRequest(job="resnet", session=session, arrivals=arrivals, summary=told)
        stub.EndIteration(request)
    pieces = list(stub.ExportJobState(pb.ExportJobStateRequest(job="resnet")))
    assert len(pieces) > 1
    assert sum(len(piece.data) for piece in pieces) == pieces[0].header.total_bytes
    first = pb.ImportJobStateRequest(job="resnet", session=session, header=pieces[0].header, data=pieces[0].data)
    requests = [first, *(pb.ImportJobStateRequest(data=piece.data) for piece in pieces[1:])]
    assert stub.ImportJobState(iter(requests)).job.learnt_iterations == 200


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
    "membership": lambda stub, session: stub.CreateJob(pb.CreateJobRequest(job="other")),
    "iteration": lambda stub, session: create(stub, "other", iteration=2**63),
    "spec.k_max": with_spec(k_min=3, k_max=2),
    "spec.estimation.averaging_window": with_spec(estimation=Estimation(averaging_window=0)),
    "spec.estimation.sample_half_life_iterations": with_spec(estimation=Estimation(sample_half_life_iterations=-1)),
    "spec.sync_mode": with_spec(sync_mode=99),
    "spec.policy.dbw.loss_increase_factor": with_spec(policy=Policy(dbw=DbwPolicy(loss_increase_factor=0.5))),
    "spec.policy.custom.name": with_spec(policy=Policy(custom=CustomPolicy(name="nonsense"))),
    "spec.policy.custom.parameters": with_spec(policy=Policy(custom=CustomPolicy(name="dbw", parameters={"x": 1.0}))),
    "summary.iteration": lambda stub, session: stub.EndIteration(
        pb.EndIterationRequest(job="resnet", session=session, summary=IterationSummary(iteration=2**63, k=1))
    ),
    "summary.end_cause": with_summary(end_cause=99),
    "arrivals[1].seconds": with_arrivals(FINE, Arrivals(iteration=0, seconds=[math.inf])),
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
    assert violation.description
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


def test_a_bug_is_internal_with_a_correlation_id_and_no_traceback() -> None:
    """A policy of the operator fails: the caller gets an id, and only the log has the traceback."""
    with controller("--default-policy", "tests.policies:Failing") as server, server.stub() as stub:
        session = create(stub)
        with pytest.raises(grpc.RpcError) as error:
            end(stub, session, 0)
        code, reason, metadata, _ = failure(error.value)
        assert (code, reason) == (grpc.StatusCode.INTERNAL, "BUG")
        assert isinstance(error.value, grpc.Call)
        assert SECRET not in (error.value.details() or "")
        line = server.wait_for_log("a bug", correlation_id=metadata["correlation_id"], job="resnet")
        assert SECRET in line["traceback"]
        assert end(stub, session, 0).decision.k == 4, "a retry finds a decision"
