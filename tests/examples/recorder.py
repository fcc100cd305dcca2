"""A proxy in front of a controller that records what a parameter server says, in whatever language it is written."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import Arrivals, Decision, IterationSummary
from dbw_controller.core import decision
from dbw_controller.core.diagnosis import Diagnosis, Finding
from dbw_controller.core.job import Job
from dbw_controller.core.policies import Dbw
from dbw_controller.core.reports import Membership, Report
from dbw_controller.wire import messages
from tests.proxy import Forward, proxied

SERVICE = pb.DESCRIPTOR.services_by_name["ControllerService"]
REPORTS = (pb.CoordinateRequest, pb.EndIterationRequest, pb.ReportRequest)


@dataclass
class RecordedJob:
    """What one job's parameter server said and was answered, in order."""

    requests: list[Any] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)  # the answers to summaries

    @property
    def reports(self) -> list[Any]:
        """The requests that tell of iterations, each of one at most."""
        reports = (request for request in self.requests if isinstance(request, REPORTS))
        return [one for request in reports for one in messages.one_by_one(request)]

    @property
    def summaries(self) -> list[IterationSummary]:
        """The iterations that ended."""
        return [report.summary for report in self.reports if _has_summary(report)]

    @property
    def arrivals(self) -> list[Arrivals]:
        """When gradients arrived."""
        return [arrivals for report in self.reports for arrivals in report.arrivals]

    @property
    def late(self) -> list[Arrivals]:
        """Those that arrived when their iteration had ended."""
        k = {summary.iteration: summary.k for summary in self.summaries}
        return [a for a in self.arrivals if a.preceding + len(a.seconds) > k.get(a.iteration, len(a.seconds))]

    def replay(self) -> list[Decision]:
        """What the algorithm answers to the same requests in this process, without a network."""
        answered = {decision.iteration for decision in self.decisions}  # not to what preceded another iteration
        return [
            messages.decision_message(answer, getattr(request, "include_estimates", False))
            for request, (_, _, answer, _) in zip(self.reports, self._events(), strict=True)
            if answer is not None and answer.iteration in answered
        ]

    def findings(self) -> list[Finding]:
        """What `dbw doctor` would say."""
        diagnosis = Diagnosis()
        for event in self._events():
            diagnosis.observe(*event)
        return diagnosis.findings()

    def _events(self) -> Iterator[tuple[Report, decision.Decision, decision.Decision | None, Membership]]:
        created, *others = self.requests
        assert all(isinstance(request, (*REPORTS, pb.DeleteJobRequest)) for request in others), "nothing went wrong"
        membership = messages.membership_from(created.membership)
        same = Job(messages.spec_from(created.spec, Dbw()), membership, created.iteration)
        for request in self.reports:
            asked, report = same.decision(), messages.report_from(request)
            yield report, asked, same.report(report), same.membership


@dataclass
class Recorder:
    """All jobs that were seen, and where to talk to the controller so that they are."""

    target: str = ""
    jobs: dict[str, RecordedJob] = field(default_factory=dict)

    def job(self, name: str) -> RecordedJob:
        """The job of this name."""
        return self.jobs.setdefault(name, RecordedJob())

    def listen(self, rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        """Hand a call on, and keep what a job says and is answered."""
        method = SERVICE.methods_by_name[rpc]
        request_type, response_type = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        names: list[str] = []

        def heard() -> Iterator[bytes]:
            for data in requests:
                request: Any = request_type.FromString(data)
                names.append(request.job)
                self.job(request.job).requests.append(request)
                yield data

        for data in forward(heard()):
            if rpc in ("Coordinate", "EndIteration"):
                response: Any = response_type.FromString(data)
                self.job(names[0]).decisions.append(response.decision)
            yield data


@contextmanager
def recorded(controller: str) -> Iterator[Recorder]:
    """Record what is said to a controller."""
    seen = Recorder()
    with proxied(controller, seen.listen) as seen.target:
        yield seen


def _has_summary(report: Any) -> bool:
    return not isinstance(report, pb.ReportRequest) and report.HasField("summary")
