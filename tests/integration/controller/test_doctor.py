"""What `dbw doctor` says of parameter servers that make one of the mistakes that it knows."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from msgspec.structs import replace

from dbw.v1 import controller_pb2 as pb
from dbw.v1 import iteration_pb2
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.job_pb2 import JobSpec
from dbw_controller.core.decision import Decision
from dbw_controller.core.diagnosis import FindingKind
from dbw_controller.core.policies import DbwPlus, Static
from dbw_controller.core.reports import IterationSummary, Report
from dbw_controller.server.recent_reports import MIN_ITERATIONS, SUFFICIENT_ITERATIONS
from dbw_controller.wire import messages
from tests.programs import dbw
from tests.proxy import Forward, proxied
from tests.servers import PATIENCE, Controller
from tests.unit.controller.core.diagnosis.server import Change, Server, changed_arrivals, changed_summary, told
from tests.unit.controller.core.diagnosis.test_clock import scaled
from tests.unit.controller.core.diagnosis.test_deadlines import hanging
from tests.unit.controller.core.diagnosis.test_late import only_in_time
from tests.unit.controller.core.diagnosis.test_summaries import moments_of


def doctor(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return dbw("doctor", *arguments, **environment).run()


def findings(output: str) -> list[str]:
    return re.findall(r"^  ([A-Z_]+) in ", output, re.MULTILINE)


@dataclass
class RemoteServer(Server):
    """The simulated parameter server, with a real controller."""

    stub: Any = None
    name: str = "resnet"

    def __post_init__(self) -> None:
        super().__post_init__()
        spec = JobSpec(policy=messages.spec_message(self.job.spec).policy, k_min=self.k_min)
        membership = messages.membership_message(self.membership())
        request = pb.CreateJobRequest(job=self.name, spec=spec, membership=membership, iteration=0)
        self.session = self.stub.CreateJob(request).session

    def send(self, report: Report) -> Decision:
        answer = self.stub.EndIteration(request_of(self.name, self.session, self.change(report))).decision
        deadline = answer.deadline_seconds if answer.HasField("deadline_seconds") else None
        return replace(self.answer, iteration=answer.iteration, k=answer.k, deadline_seconds=deadline)


def request_of(job: str, session: str, report: Report) -> pb.EndIterationRequest:
    """A report with a summary, as it goes over the wire."""
    arrivals = [
        iteration_pb2.Arrivals(iteration=a.iteration, preceding=a.preceding, seconds=a.seconds, workers=a.workers)
        for a in report.arrivals
    ]
    assert report.summary is not None
    return pb.EndIterationRequest(job=job, session=session, arrivals=arrivals, summary=summary_of(report.summary))


def summary_of(summary: IterationSummary) -> iteration_pb2.IterationSummary:
    told, moments = structs.asdict(summary), summary.moments
    wanted = ("iteration", "k", "duration_seconds", "published_seconds", "loss", "learning_rate")
    cause = iteration_pb2.EndCause.Value(f"END_CAUSE_{summary.end_cause.name}")
    message = iteration_pb2.IterationSummary(**{name: told[name] for name in wanted}, end_cause=cause)
    if moments is not None and moments.sum_squared_norms is not None:
        message.moments.mean_squared_norm = moments.mean_squared_norm
        message.moments.sum_squared_norms = moments.sum_squared_norms
    return message


def since_the_start_of_training() -> Change:
    starts: dict[int, float] = {}

    def apply(report: Report) -> Report:
        summary = report.summary
        assert summary is not None
        starts[summary.iteration] = start = summary.published_seconds or 0.0
        arrivals = [replace(a, seconds=a.seconds + starts[a.iteration]) for a in report.arrivals]
        later = replace(summary, duration_seconds=summary.duration_seconds + start)
        return replace(report, arrivals=arrivals, summary=later)

    return apply


def one_gradient_fewer(report: Report) -> Report:
    """The iteration ends with the gradient before the k-th."""
    summary = report.summary
    assert summary is not None
    k, times = summary.k - 1, report.arrivals[0].seconds
    return replace(report, summary=replace(summary, k=k, duration_seconds=float(times[k - 1])))


MISTAKES: dict[FindingKind, Change] = {
    FindingKind.TIMES_NOT_SINCE_PUBLICATION: since_the_start_of_training(),
    FindingKind.MOMENTS_IMPOSSIBLE: moments_of(lambda k, mean: k * k * mean, lambda squares: squares),
    FindingKind.LOSS_IS_A_SUM: changed_summary(lambda s: {"loss": s.k * (s.loss or 0.0)}),
    FindingKind.K_NOT_RESPECTED: one_gradient_fewer,
    FindingKind.DEADLINE_IGNORED: lambda report: report,
    FindingKind.ARRIVALS_INCONSISTENT: changed_arrivals(lambda a: replace(a, seconds=a.seconds[::-1])),
    FindingKind.INPUT_MISSING: told(learning_rate=None),
    FindingKind.LATE_ARRIVALS_MISSING: only_in_time,
    FindingKind.MEMBERSHIP_OUT_OF_DATE: changed_arrivals(lambda a: replace(a, workers=3 + np.asarray(a.workers))),
    FindingKind.TIMES_NOT_SECONDS: scaled(1000.0),
}
# The first three need iterations of several gradients, and a deadline is one of dbw-plus; the others are found whatever
# is decided.
SETTINGS: dict[FindingKind, dict[str, Any]] = {
    FindingKind.MOMENTS_IMPOSSIBLE: {"policy": Static(4)},
    FindingKind.K_NOT_RESPECTED: {"policy": Static(4)},
    FindingKind.ARRIVALS_INCONSISTENT: {"policy": Static(4)},
    FindingKind.DEADLINE_IGNORED: {
        "policy": DbwPlus(),
        "k_min": 4,
        "round_trips": hanging(),
        "respects_deadlines": False,
    },
}


@pytest.mark.parametrize("kind", FindingKind)
def test_a_mistake_is_named_and_no_other(server: Controller, stub: ControllerServiceStub, kind: FindingKind) -> None:
    RemoteServer(stub=stub, change=MISTAKES[kind], **SETTINGS.get(kind, {})).run(125)
    done = doctor(server.target, "resnet")
    assert findings(done.stdout) == [kind.name], done.stdout + done.stderr
    assert done.returncode == 1
    assert done.stdout.startswith("resnet: 1 mistake in 125 iterations\n")
    (finding,) = stub.DiagnoseJob(pb.DiagnoseJobRequest(job="resnet")).findings
    often = f"{kind.name} in {finding.iterations} iterations, the last time in iteration {finding.last_iteration}"
    assert done.stdout.splitlines()[1:] == [f"  {often}", f"    {finding.message}"]


def test_a_healthy_parameter_server_gets_no_finding(server: Controller, stub: ControllerServiceStub) -> None:
    RemoteServer(stub=stub).run(SUFFICIENT_ITERATIONS)
    done = doctor(server.target, "resnet")
    assert (done.returncode, done.stdout) == (
        0,
        f"resnet: nothing looks wrong in {SUFFICIENT_ITERATIONS} iterations.\n",
    )


@pytest.mark.parametrize(
    ("iterations", "text"),
    [
        (0, "0 iterations, which are too few to judge: ask again after 106."),
        (1, "1 iteration, which are too few to judge: ask again after 106."),
        (MIN_ITERATIONS, f"{MIN_ITERATIONS} iterations, but some mistakes show only after 106: ask again then."),
    ],
)
def test_it_is_said_when_there_are_too_few_iterations(
    server: Controller, stub: ControllerServiceStub, iterations: int, text: str
) -> None:
    RemoteServer(stub=stub).run(iterations)
    done = doctor(server.target, "resnet")
    assert (done.returncode, done.stdout) == (0, f"resnet: nothing looks wrong in {text}\n")


@pytest.mark.parametrize(
    ("thresholds", "text"),
    [
        ((0, 0), "nothing looks wrong in 1 iteration."),
        ((1, 7), "but some mistakes show only after 7: ask again then."),
    ],
    ids=["none", "others"],
)
def test_how_many_iterations_are_enough_is_what_the_controller_says(
    server: Controller, stub: ControllerServiceStub, thresholds: tuple[int, int], text: str
) -> None:
    """A controller of before says nothing, and then neither does the doctor."""
    RemoteServer(stub=stub).run(1)

    def replace_thresholds(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc != "DiagnoseJob":
            return forward(requests)
        least, sufficient = thresholds
        response = pb.DiagnoseJobResponse(iterations=1, min_iterations=least, sufficient_iterations=sufficient)
        return iter([response.SerializeToString()])

    with proxied(server.target, replace_thresholds) as address:
        done = doctor(address)
    assert (done.returncode, done.stdout.endswith(f"{text}\n")) == (0, True), done.stdout


def test_all_jobs_are_examined_if_none_is_named(server: Controller, stub: ControllerServiceStub) -> None:
    RemoteServer(stub=stub, name="healthy").run(10)
    RemoteServer(stub=stub, name="sick", change=told(loss=None)).run(10)
    done = doctor(DBW_CLIENT_CONTROLLER=server.target)
    assert done.returncode == 1
    assert re.findall(r"^\w+: ", done.stdout, re.MULTILINE) == ["healthy: ", "sick: "]
    assert findings(done.stdout) == ["INPUT_MISSING"]


@pytest.mark.parametrize(
    "arguments",
    [("resnet", "SERVER"), ("resnet", "--controller", "SERVER"), ("--controller", "SERVER", "resnet")],
    ids=" ".join,
)
def test_a_job_and_the_address_may_be_given_in_any_order(
    server: Controller, stub: ControllerServiceStub, arguments: tuple[str, ...]
) -> None:
    RemoteServer(stub=stub).run(1)
    RemoteServer(stub=stub, name="other").run(1)
    done = doctor(*(server.target if argument == "SERVER" else argument for argument in arguments))
    assert re.findall(r"^\w+: ", done.stdout, re.MULTILINE) == ["resnet: "], done.stderr


def test_a_job_that_is_deleted_meanwhile_is_left_out(server: Controller, stub: ControllerServiceStub) -> None:
    RemoteServer(stub=stub, name="gone").run(1)
    RemoteServer(stub=stub, name="healthy").run(1)

    def delete_first(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc == "DiagnoseJob":
            stub.DeleteJob(pb.DeleteJobRequest(job="gone", allow_missing=True))
        return forward(requests)

    with proxied(server.target, delete_first) as address:
        done = doctor(address)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^\w+: ", done.stdout, re.MULTILINE) == ["healthy: "]


def test_a_list_of_jobs_without_end_is_an_error(server: Controller) -> None:
    def repeat(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc != "ListJobs":
            return forward(requests)
        return iter([pb.ListJobsResponse(next_page_token="more").SerializeToString()])  # noqa: S106

    with proxied(server.target, repeat) as address:
        done = doctor(address)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"dbw doctor: {address}: the page token 'more' came twice: the list of jobs has no end\n"


def test_a_verdict_that_nobody_reads_is_none(server: Controller, stub: ControllerServiceStub) -> None:
    RemoteServer(stub=stub).run(1)
    assert dbw("doctor", server.target).run_unread() == (1, "")


def test_no_jobs_are_said_to_be_none(server: Controller) -> None:
    done = doctor("--controller", server.target)
    assert (done.returncode, done.stdout) == (0, "There are no jobs.\n")


def test_findings_fit_on_a_terminal(server: Controller, stub: ControllerServiceStub) -> None:
    RemoteServer(stub=stub, change=told(loss=None)).run(10)
    terminal, inside = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "60", "LINES": "50"}
    command = [sys.executable, "-m", "dbw_runtime.cli", "doctor", server.target]
    with subprocess.Popen(command, stdout=inside, env=environment) as shown:
        assert shown.wait(PATIENCE) == 1
    screen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(terminal, 65536).decode())
    os.close(inside)
    os.close(terminal)
    assert "    The policy needs what was not reported: the loss. Report\r\n    it in every iteration." in screen


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("SERVER", "nobody"), 1, "NOT_FOUND"),
        (("--controller", "resnet"), 2, "the address is 'resnet'; it must be HOST:PORT"),
        (("SERVER", "resnet", "more"), 2, "unrecognized arguments: more"),
        (("SERVER", "--controller", "SERVER"), 2, "unrecognized arguments: 127.0.0.1"),
        (("127.0.0.1:1",), 1, "UNAVAILABLE"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(
    server: Controller, arguments: tuple[str, ...], code: int, text: str
) -> None:
    done = doctor(*(server.target if argument == "SERVER" else argument for argument in arguments))
    assert (done.returncode, text in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr
