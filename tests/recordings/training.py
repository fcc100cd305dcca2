"""A simulated training whose every message to the controller is recorded."""

from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import Decision, IterationSummary, Membership
from dbw.v1.job_pb2 import JobSpec
from tests.recordings.player import Player, Step
from tests.recordings.simulation import Cluster, Descent, RoundTrips, exponential

RESPONSES: dict[str, type[Any]] = {
    "CreateJob": pb.CreateJobResponse,
    "EndIteration": pb.EndIterationResponse,
    "ExportJobState": pb.ExportJobStateResponse,
    "GetDecision": pb.GetDecisionResponse,
    "GetJob": pb.GetJobResponse,
    "ImportJobState": pb.ImportJobStateResponse,
    "WatchJob": pb.WatchJobResponse,
}


class Recorder:
    """Plays steps and keeps them with their answers."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self.steps: list[Step] = []

    def do(self, what: str) -> None:
        """Restart the controller, or hang up."""
        self._record({"do": what})

    def call(self, rpc: str, request: Any = None, **more: str) -> Any:
        """Call an rpc; returns its response, which has to come."""
        answer = self._record(_step(rpc, request, more))
        assert "error" not in answer, answer
        return ParseDict(answer["response"], RESPONSES[rpc]()) if rpc in RESPONSES else None

    def coordinate(self, *requests: Any) -> list[Decision]:
        """Send reports on the open stream, the last one with a summary; returns the decisions."""
        answer = self._record(_stream_step(requests))
        assert "error" not in answer, answer
        return [ParseDict(response, pb.CoordinateResponse()).decision for response in answer["responses"]]

    def refused(self, rpc: str, *requests: Any, **more: str) -> None:
        """Call an rpc that has to fail."""
        step = _stream_step(requests) if rpc == "Coordinate" else _step(rpc, requests[0], more)
        answer = self._record(step)
        assert "error" in answer, (step, answer)
        assert answer["error"]["reason"] not in ("", "BUG"), answer

    def _record(self, step: Step) -> Step:
        answer = self._player.play(step)
        self.steps.append({**step, **answer})
        return answer


def _step(rpc: str, request: Any, more: dict[str, str]) -> Step:
    return {"rpc": rpc, **({} if request is None else {"request": _as_plain(request)}), **more}


def _stream_step(requests: tuple[Any, ...]) -> Step:
    return {"rpc": "Coordinate", "requests": list(map(_as_plain, requests))}


def _as_plain(request: Any) -> Step:
    plain: Step = MessageToDict(request, preserving_proto_field_name=True)
    return plain


class Training:
    """One job, with simulated workers. Everything that it does follows from its seed and from the decisions."""

    def __init__(
        self,
        wire: Recorder,
        job: str,
        spec: JobSpec,
        workers: int,
        round_trips: RoundTrips = exponential,
        seed: int = 1,
        numbered: bool = True,  # whether workers can be told apart
        streaming: bool = True,  # Coordinate, else EndIteration
        **descent: Any,
    ) -> None:
        self.wire, self.job, self.spec = wire, job, spec
        self.numbered, self.streaming = numbered, streaming
        rng = np.random.default_rng([seed, workers])
        self.cluster = Cluster(rng, list(range(workers)), spec.sync_mode, round_trips)
        self.descent = Descent(rng, **descent)
        self.session = ""
        self.iteration = 0
        self.decision = Decision()
        self._told_of = self.membership()

    def membership(self) -> Membership:
        """The workers that are alive."""
        live = self.cluster.workers
        return Membership(live_workers=len(live), workers=live if self.numbered else ())

    def create(self, iteration: int | None = 0) -> pb.CreateJobResponse:
        """Create the job, or attach to it: at an iteration, with idle workers, or in the middle of training."""
        self._told_of = self.membership()
        request = pb.CreateJobRequest(
            job=self.job, spec=self.spec, membership=self._told_of, iteration=iteration, include_estimates=True
        )
        response: pb.CreateJobResponse = self.wire.call("CreateJob", request)
        self.session = response.session
        if iteration is not None:
            self.iteration, self.decision = iteration, response.job.decision
            self.cluster.begin_anew()
        return response

    def observe(self) -> pb.EndIterationRequest:
        """Go through the next iteration; returns what is to be reported of it."""
        k = max(self.decision.k, 1)
        deadline = self.decision.deadline_seconds if self.decision.HasField("deadline_seconds") else None
        ended = self.cluster.run(self.iteration, k, deadline)
        loss, moments = self.descent.step(ended.k)
        if not self.numbered:
            for batch in ended.arrivals:
                batch.ClearField("workers")
        summary = IterationSummary(
            iteration=self.iteration,
            k=ended.k,
            duration_seconds=ended.seconds,
            end_cause=ended.cause,
            published_seconds=ended.published,
            loss=loss,
            learning_rate=self.descent.rate,
            moments=moments,
            lost_gradients=ended.lost,
        )
        self.iteration += 1
        return pb.EndIterationRequest(arrivals=ended.arrivals, summary=summary)

    def tell(self, request: pb.EndIterationRequest, *earlier: pb.ReportRequest) -> Decision:
        """Report an iteration, perhaps after reports without a summary; returns the decision for the next one."""
        if self.membership() != self._told_of:
            self._told_of = self.membership()
            request.membership.CopyFrom(self._told_of)
        request.include_estimates = True
        self.address(request, *earlier)
        if self.streaming:
            self.decision = self.wire.coordinate(*(streamed(report) for report in (*earlier, request)))[-1]
        else:
            for report in earlier:
                self.wire.call("Report", report)
            self.decision = self.wire.call("EndIteration", request).decision
        return self.decision

    def address(self, *requests: Any) -> None:
        """Say whose reports these are."""
        for request in requests:
            request.job, request.session = self.job, self.session

    def train(self, iterations: int, **changes: Any) -> None:
        """Go through iterations as everything goes well; fields of the summary may be given another value."""
        for _ in range(iterations):
            request = self.observe()
            for name, value in changes.items():
                if value is None:
                    request.summary.ClearField(name)  # type: ignore[arg-type] # any of its fields
                else:
                    setattr(request.summary, name, value)
            self.tell(request)

    def skip(self) -> pb.EndIterationRequest:
        """Go through an iteration whose report gets lost, and go on with the same k."""
        request = self.observe()
        self.decision.iteration = self.iteration
        return request

    def get_decision(self, iteration: int | None = None) -> pb.GetDecisionRequest:
        """The request for a decision that was made."""
        return pb.GetDecisionRequest(job=self.job, iteration=iteration, include_estimates=True)

    def look(self) -> None:
        """Ask for all that the controller knows of the job."""
        self.wire.do("hang up")
        self.wire.call("GetJob", pb.GetJobRequest(job=self.job))
        self.wire.call("GetDecision", self.get_decision())
        self.wire.call("DiagnoseJob", pb.DiagnoseJobRequest(job=self.job))

    def end(self) -> None:
        """Look at the job for the last time, and delete it."""
        self.look()
        self.wire.call("DeleteJob", pb.DeleteJobRequest(job=self.job))


def streamed(request: Message) -> pb.CoordinateRequest:
    """The same report for a stream: fields have the same numbers."""
    return pb.CoordinateRequest.FromString(request.SerializeToString())
