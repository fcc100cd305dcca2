"""What a job has learnt, as it travels: a header, and bytes that only a controller can read."""

import hashlib

from dbw.v1.controller_pb2 import JobStateHeader
from dbw_controller.core.decision import Decision
from dbw_controller.core.errors import StateDamagedError, StateFormatUnknownError
from dbw_controller.core.job import Job
from dbw_controller.core.job_state import STATE_VERSION


def export_state(name: str, job: Job) -> tuple[JobStateHeader, bytes]:
    """What a job has learnt."""
    data = job.learnt()
    header = JobStateHeader(
        job=name,
        learnt_iterations=job.learnt_iterations,
        format_version=STATE_VERSION,
        total_bytes=len(data),
        sha256=hashlib.sha256(data).digest(),
    )
    return header, data


def require_known_format(header: JobStateHeader) -> None:
    """Refuse a state in a format that is newer than ours."""
    if header.format_version > STATE_VERSION:
        raise StateFormatUnknownError(header.format_version, STATE_VERSION)


def import_state(job: Job, header: JobStateHeader, data: bytes, only_if_newer: bool = False) -> Decision:
    """Replace what a job has learnt; returns its decision since then. A damaged state changes nothing.

    With `only_if_newer` a job that has learnt from as many iterations, or more, stays as it is.
    """
    require_known_format(header)
    if len(data) != header.total_bytes or hashlib.sha256(data).digest() != header.sha256:
        raise StateDamagedError(f"its {len(data)} bytes are not the {header.total_bytes} that were exported")
    return job.adopt(data, only_if_newer)  # the digest does not cover the header's `learnt_iterations`
