"""What a parameter server sends, for tests that talk to a real controller."""

from typing import Any

import grpc
import numpy as np
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Arrivals, Decision, GradientMoments, IterationSummary, Membership

TIMES = (1.0, 1.1, 1.2, 3.0)


def create(stub: ControllerServiceStub, job: str = "resnet", workers: int = 4, **fields: Any) -> str:
    """Create a job; returns its session."""
    request = pb.CreateJobRequest(job=job, membership=Membership(live_workers=workers), **{"iteration": 0, **fields})
    return stub.CreateJob(request).session


def summary(iteration: int, k: int = 4, **fields: Any) -> IterationSummary:
    """An iteration that ended well."""
    moments = GradientMoments(mean_squared_norm=2.0, sum_squared_norms=3.0 * k)
    told = {"duration_seconds": TIMES[k - 1], "loss": 2.0 * 0.99**iteration, "learning_rate": 0.1, "moments": moments}
    return IterationSummary(iteration=iteration, k=k, **{**told, **fields})


def whole_iteration(job: str, session: str, iteration: int, k: int = 4, seed: int = 0) -> pb.CoordinateRequest:
    """An iteration in which all gradients arrived; the times are random but for a given seed always the same."""
    times = np.array(TIMES) * np.random.default_rng([seed, iteration]).uniform(0.9, 1.1)
    arrivals = Arrivals(iteration=iteration, seconds=times, workers=range(len(TIMES)))
    ended = summary(iteration, k, duration_seconds=times[k - 1])
    return pb.CoordinateRequest(job=job, session=session, arrivals=[arrivals], summary=ended)


def train(stub: ControllerServiceStub, job: str, session: str, iterations: range) -> list[Decision]:
    """Go through iterations, always waiting for as many as decided; returns the decisions."""
    decision = stub.GetDecision(pb.GetDecisionRequest(job=job)).decision
    decisions = []
    for iteration in iterations:
        request = whole_iteration(job, session, iteration, decision.k)
        unary = pb.EndIterationRequest.FromString(request.SerializeToString())
        decision = stub.EndIteration(unary).decision
        decisions.append(decision)
    return decisions


def failure(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, dict[str, str], list[Any]]:
    """Status code, reason, metadata and further details of an rpc that failed."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type] # errors of rpcs are calls as well
    assert status is not None, f"there are no details: {error}"
    info, others = error_details_pb2.ErrorInfo(), []
    assert status.details[0].Unpack(info)
    assert info.domain == "dbw.v1"
    for detail in status.details[1:]:
        kind = getattr(error_details_pb2, detail.TypeName().rpartition(".")[2])
        others.append(kind.FromString(detail.value))
    assert isinstance(error, grpc.Call)
    return error.code(), info.reason, dict(info.metadata), others
