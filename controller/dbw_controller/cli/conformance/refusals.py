"""Whether requests that cannot be served fail as the contract says."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import Arrivals, IterationSummary, Membership
from dbw.v1.job_pb2 import JobSpec, Policy, StaticPolicy
from dbw_controller.cli.conformance.check import check, expect, expect_refusal, require
from dbw_controller.cli.conformance.states import exported, imported
from dbw_controller.cli.conformance.subject import Subject, Training

NEGATIVE = Arrivals(iteration=0, seconds=[1.0, -1.0])


@check
def unknown_job(subject: Subject) -> None:
    """Every rpc that needs a job is refused where there is none."""
    training = subject.training(1)
    state = exported(subject, training)
    training.name = name = subject.name()
    end = training.request(1)
    requests = {
        "GetJob": pb.GetJobRequest(job=name),
        "GetDecision": pb.GetDecisionRequest(job=name),
        "Report": pb.ReportRequest(job=name, session=training.session),
        "EndIteration": end,
        "Coordinate": _streamed(end),
        "WatchJob": pb.WatchJobRequest(job=name),
        "DiagnoseJob": pb.DiagnoseJobRequest(job=name),
        "ExportJobState": pb.ExportJobStateRequest(job=name),
        "ImportJobState": imported(state, training),
    }
    for method, request in requests.items():
        expect_refusal(method, "JOB_NOT_FOUND", getattr(subject.rpc, method), request)


@check
def unknown_session(subject: Subject) -> None:
    """A report of a session that the controller does not know is refused."""
    training = subject.training()
    training.session = "nonsense"
    _expect_refused_reports(subject, training, "SESSION_NOT_FOUND")


@check
def replaced_session(subject: Subject) -> None:
    """A report of a session that ended, because the job was created again, is refused."""
    training = subject.training()
    subject.create(training.name)
    _expect_refused_reports(subject, training, "SESSION_REPLACED")


def _expect_refused_reports(subject: Subject, training: Training, reason: str) -> None:
    expect_refusal("EndIteration", reason, training.end, 0)
    expect_refusal("Report", reason, training.report)
    expect_refusal("Coordinate", reason, subject.rpc.Coordinate, _streamed(training.request(0)))


@check
def invalid_job(subject: Subject) -> None:
    """CreateJob with a value that is not allowed is refused, and BadRequest names the field."""
    name = subject.name()
    specs = {
        "spec.k_min": JobSpec(k_min=0),
        "spec.policy.rule": JobSpec(policy=Policy()),
        "spec.policy.static.k": JobSpec(policy=Policy(static=StaticPolicy())),
    }
    for field, spec in specs.items():
        _expect_invalid(field, partial(subject.create, spec=spec), name)
    _expect_invalid("job", subject.create, "a/b")
    same_workers = pb.CreateJobRequest(job=name, membership=Membership(live_workers=2, workers=[1, 1]))
    _expect_invalid("membership.workers", subject.rpc.CreateJob, same_workers)
    expect_refusal("GetJob after that", "JOB_NOT_FOUND", subject.rpc.GetJob, pb.GetJobRequest(job=name))


@check
def invalid_report(subject: Subject) -> None:
    """A report with a value that is not allowed is refused, BadRequest names the field, and nothing changes."""
    training = subject.training(3)
    before = training.job()
    ends: dict[str, dict[str, Any]] = {
        "summary.k": {"summary": IterationSummary(iteration=3, k=0, duration_seconds=1.0)},
        "summary.duration_seconds": {"summary": IterationSummary(iteration=3, k=1, duration_seconds=math.nan)},
        "arrivals[0].seconds": {"arrivals": [NEGATIVE]},
        "arrivals[0].workers": {"arrivals": [Arrivals(iteration=3, seconds=[1.0], workers=[1, 2])]},
    }
    for field, fields in ends.items():
        _expect_invalid(field, partial(training.end, **fields), 3)
    without = pb.EndIterationRequest(job=training.name, session=training.session)
    _expect_invalid("summary", subject.rpc.EndIteration, without)
    after = training.job()
    expect("the decision after that", after.decision, before.decision)
    expect("learnt_iterations after that", after.learnt_iterations, before.learnt_iterations)


def _expect_invalid(field: str, call: Callable[..., Any], *arguments: object) -> None:
    _, bad_request = expect_refusal(f"a wrong {field}", "INVALID_VALUE", call, *arguments)
    fields = [violation.field for violation in bad_request.field_violations]
    named = any(name.startswith(field) for name in fields)
    require(named, f"BadRequest names {', '.join(fields) or 'no field'}; expected {field}")


@check
def bad_message_on_a_stream(subject: Subject) -> None:
    """A bad request ends its own stream, and only that."""
    one, other = subject.training(), subject.training()
    with subject.stream() as bad, subject.stream() as good:
        bad.ask(one.request(0))
        good.ask(other.request(0))
        bad.send(one.request(1, arrivals=[NEGATIVE]))
        expect_refusal("the bad request", "INVALID_VALUE", list, bad.answers)
        expect("the other stream's decision", good.ask(other.request(1)).iteration, 2)
    expect("the decision after another call", one.end(1).iteration, 2)


@check
def one_job_a_stream(subject: Subject) -> None:
    """A stream serves one job: a request for another one ends it."""
    one, other = subject.training(), subject.training()
    with subject.stream() as stream:
        stream.ask(one.request(0))
        stream.send(other.request(0))
        _expect_invalid("job", list, stream.answers)


def _streamed(request: pb.EndIterationRequest) -> Iterable[pb.CoordinateRequest]:
    return iter([pb.CoordinateRequest.FromString(request.SerializeToString())])
