"""Whether those who watch, ask for a diagnosis, or move what was learnt get what the contract says."""

import hashlib

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from dbw.v1 import controller_pb2 as pb
from dbw_controller.cli.conformance.check import SkippedCheckError, check, expect, expect_refusal, require
from dbw_controller.cli.conformance.states import exported, imported
from dbw_controller.cli.conformance.subject import Subject
from dbw_controller.contract import PIECE_BYTES

SERVICE = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name
# Without a health service, and with one that does not know what it is asked for.
NO_HEALTH = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND)


@check
def watch_job(subject: Subject) -> None:
    """WatchJob sends the job, then every iteration as it ends, and ends well when the job is deleted."""
    training = subject.training(1)
    responses = subject.rpc.WatchJob(pb.WatchJobRequest(job=training.name))
    first = next(responses)
    require(not first.HasField("summary"), "the first response has a summary; expected the job alone")
    expect("the first decision", first.job.decision, training.decision)
    for iteration in (1, 2):
        request = training.request(iteration)
        training.decision = subject.rpc.EndIteration(request).decision
        seen = next(responses)
        expect("the summary", seen.summary, request.summary)
        expect("the decision", seen.job.decision, training.decision)
    subject.rpc.DeleteJob(pb.DeleteJobRequest(job=training.name))
    expect("what else was sent", list(responses), [])


@check
def diagnose_job(subject: Subject) -> None:
    """DiagnoseJob finds nothing wrong with what a healthy parameter server reports."""
    training = subject.training(20)
    diagnosis = subject.rpc.DiagnoseJob(pb.DiagnoseJobRequest(job=training.name))
    expect("the findings", list(diagnosis.findings), [])
    require(diagnosis.iterations <= 20, f"it is based on {diagnosis.iterations} iterations; expected 20 at most")


@check
def export_state(subject: Subject) -> None:
    """ExportJobState sends a header and then, in pieces of at most 2 MiB, the bytes that it describes."""
    training = subject.training(8)
    pieces = exported(subject, training)
    header, data = pieces[0].header, b"".join(piece.data for piece in pieces)
    expect("the header's job", header.job, training.name)
    expect("the header's learnt_iterations", header.learnt_iterations, 8)
    expect("the header's total_bytes", header.total_bytes, len(data))
    expect("the header's sha256", header.sha256.hex(), hashlib.sha256(data).hexdigest())
    require(all(len(piece.data) <= PIECE_BYTES for piece in pieces), "a piece has more than 2 MiB")
    require(not any(piece.HasField("header") for piece in pieces[1:]), "there is a header after the first response")


@check
def import_state(subject: Subject) -> None:
    """ImportJobState gives a job what another has learnt, and decides again for the iteration that the job is at."""
    teacher, pupil = subject.training(8), subject.training(2)
    pieces = exported(subject, teacher)
    job = subject.rpc.ImportJobState(imported(pieces, pupil)).job
    expect("the job's name", job.name, pupil.name)
    expect("learnt_iterations", job.learnt_iterations, 8)
    expect("the decision's iteration", job.decision.iteration, 2)
    pupil.decision = job.decision
    expect("the next decision's iteration", pupil.end(2).iteration, 3)


@check
def damaged_state(subject: Subject) -> None:
    """A state that did not arrive intact is refused, and nothing changes."""
    teacher, pupil = subject.training(8), subject.training(2)
    pieces = exported(subject, teacher)
    short, changed = imported(pieces, pupil, total_bytes=10**6), imported(pieces, pupil, sha256=bytes(32))
    for what, requests in (("a state cut short", short), ("a wrong digest", changed)):
        expect_refusal(what, "STATE_DAMAGED", subject.rpc.ImportJobState, requests)
    expect("learnt_iterations after that", pupil.job().learnt_iterations, 2)
    expect("the decision after that", pupil.job().decision, pupil.decision)


@check
def unknown_state_format(subject: Subject) -> None:
    """A state in a format that the controller does not know is refused."""
    training = subject.training(2)
    requests = imported(exported(subject, training), training, format_version=2**32 - 1)
    expect_refusal("another format", "STATE_FORMAT_UNKNOWN", subject.rpc.ImportJobState, requests)


@check
def health(subject: Subject) -> None:
    """The health service (grpc.health.v1), where there is one, says SERVING for the server and the service."""
    for service in ("", SERVICE):
        whose = service or "the server"
        try:
            answer = subject.health.Check(HealthCheckRequest(service=service))
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() in NO_HEALTH:
                raise SkippedCheckError(f"there is no health service for {whose}") from error
            raise
        status = HealthCheckResponse.ServingStatus.Name(answer.status)
        expect(f"the health of {whose}", status, "SERVING")
