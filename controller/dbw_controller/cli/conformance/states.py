"""What a job has learnt, on its way from one job to another."""

from collections.abc import Iterator
from typing import Any

from dbw.v1 import controller_pb2 as pb
from dbw_controller.cli.conformance.check import require
from dbw_controller.cli.conformance.subject import Subject, Training


def exported(subject: Subject, training: Training) -> list[pb.ExportJobStateResponse]:
    """All that a job has learnt."""
    pieces = list(subject.rpc.ExportJobState(pb.ExportJobStateRequest(job=training.name)))
    require(pieces and pieces[0].HasField("header"), "the first response has no header; expected one")
    return pieces


def imported(
    pieces: list[pb.ExportJobStateResponse],
    training: Training,
    **changes: Any,  # noqa: ANN401
) -> Iterator[pb.ImportJobStateRequest]:
    """What gives it to another job, with changes of the header."""
    header = pb.JobStateHeader()
    header.CopyFrom(pieces[0].header)
    for name, value in changes.items():
        setattr(header, name, value)
    session = training.session
    yield pb.ImportJobStateRequest(job=training.name, session=session, header=header, data=pieces[0].data)
    yield from (pb.ImportJobStateRequest(data=piece.data) for piece in pieces[1:])
