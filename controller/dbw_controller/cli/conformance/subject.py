"""The controller that is checked, and a parameter server to check it with."""

import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import grpc
from grpc_health.v1.health_pb2_grpc import HealthStub

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import Arrivals, Decision, GradientMoments, IterationSummary, Membership
from dbw.v1.job_pb2 import DbwPolicy, Job, JobSpec, Policy
from dbw_controller.cli.command import Controller

WORKERS = 4
TIMES = (1.0, 1.1, 1.2, 3.0)
# A controller's default may be any policy; jobs with this one decide the same after the same reports.
DBW = JobSpec(policy=Policy(dbw=DbwPolicy()))


class Training:
    """A job, and the healthy parameter server with four workers that reports for it."""

    def __init__(self, rpc: Any, name: str, created: pb.CreateJobResponse) -> None:  # noqa: ANN401
        self.rpc, self.name, self.session = rpc, name, created.session
        self.decision = created.job.decision

    def arrivals(self, iteration: int) -> Arrivals:
        """When all of an iteration's gradients arrived: not always at the same times, but the same for all jobs."""
        pace = 1 + 0.1 * math.sin(iteration)
        return Arrivals(iteration=iteration, seconds=[pace * time for time in TIMES], workers=range(WORKERS))

    def summary(self, iteration: int, k: int) -> IterationSummary:
        """An iteration that ended with its k-th arrival; its gradients have a mean of squared norm 2 and variance 1."""
        return IterationSummary(
            iteration=iteration,
            k=k,
            duration_seconds=self.arrivals(iteration).seconds[k - 1],
            loss=2.0 * 0.99**iteration,
            learning_rate=0.1,
            moments=GradientMoments(mean_squared_norm=2.0, sum_squared_norms=2.0 * k + (k - 1)),
        )

    def request(self, iteration: int, **fields: Any) -> pb.EndIterationRequest:  # noqa: ANN401
        """What ends an iteration that followed the last decision."""
        k = max(1, min(self.decision.k, WORKERS))  # a controller that is wrong must not stop its check
        usual = {"arrivals": [self.arrivals(iteration)], "summary": self.summary(iteration, k)}
        return pb.EndIterationRequest(job=self.name, session=self.session, **{**usual, **fields})

    def end(self, iteration: int, **fields: Any) -> Decision:  # noqa: ANN401
        """End an iteration, and follow the decision."""
        self.decision = self.rpc.EndIteration(self.request(iteration, **fields)).decision
        return self.decision

    def train(self, iterations: int, **fields: Any) -> list[Decision]:  # noqa: ANN401
        """Go through this many iterations, from where the job is."""
        begin = self.decision.iteration
        return [self.end(iteration, **fields) for iteration in range(begin, begin + iterations)]

    def job(self) -> Job:
        """The job, as the controller shows it."""
        job: Job = self.rpc.GetJob(pb.GetJobRequest(job=self.name)).job
        return job


class Subject:
    """A controller, and all jobs that a check has created there."""

    def __init__(self, controller: Controller) -> None:
        self.rpc = controller.calls()
        self.health = controller.calls(HealthStub)
        self._prefix = f"conformance-{secrets.token_hex(6)}"
        self._names: list[str] = []

    def name(self) -> str:
        """The name of a job that nobody has. Later names come later in the alphabet."""
        self._names.append(f"{self._prefix}-{len(self._names)}")
        return self._names[-1]

    def create(self, name: str, workers: int = WORKERS, **fields: Any) -> pb.CreateJobResponse:  # noqa: ANN401
        """Create a job, or attach to it."""
        request = pb.CreateJobRequest(job=name, membership=Membership(live_workers=workers), **fields)
        response: pb.CreateJobResponse = self.rpc.CreateJob(request)
        return response

    def training(self, iterations: int = 0, spec: JobSpec = DBW) -> Training:
        """A job of its own that has gone through this many iterations."""
        name = self.name()
        training = Training(self.rpc, name, self.create(name, spec=spec, iteration=0))
        training.train(iterations)
        return training

    @contextmanager
    def stream(self) -> Iterator["Stream"]:
        """A stream of reports, which is over afterwards."""
        stream = Stream(self.rpc)
        try:
            yield stream
        finally:
            stream.close()

    def clean_up(self) -> list[str]:
        """Delete all jobs; returns the names of those that may be left."""
        return [name for name in self._names if not self._deleted(name)]

    def _deleted(self, name: str) -> bool:
        try:
            self.rpc.DeleteJob(pb.DeleteJobRequest(job=name, allow_missing=True))
        except grpc.RpcError:
            return False
        return True


class Stream:
    """A call of Coordinate."""

    def __init__(self, rpc: Any) -> None:  # noqa: ANN401
        self._outbox: SimpleQueue[pb.CoordinateRequest | None] = SimpleQueue()
        self.answers = rpc.Coordinate(iter(self._outbox.get, None))

    def send(self, request: pb.CoordinateRequest | pb.EndIterationRequest) -> None:
        """Send what a single call would send, too: both have the same form on the wire."""
        self._outbox.put(pb.CoordinateRequest.FromString(request.SerializeToString()))

    def ask(self, request: pb.CoordinateRequest | pb.EndIterationRequest) -> Decision:
        """Send a report with a summary, and wait for its answer."""
        self.send(request)
        decision: Decision = next(self.answers).decision
        return decision

    def finish(self) -> list[pb.CoordinateResponse]:
        """Send no more; returns the answers that were not read yet."""
        self._outbox.put(None)
        return list(self.answers)

    def close(self) -> None:
        """End the call, and the thread that sends."""
        self._outbox.put(None)
        self.answers.cancel()
