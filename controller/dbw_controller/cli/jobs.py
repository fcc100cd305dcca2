"""`dbw jobs` and `dbw delete`."""

from collections.abc import Sequence
from typing import Any

from dbw.v1.controller_pb2 import DeleteJobRequest
from dbw_controller.cli.command import JOB, Controller, run_command, wide_console
from dbw_controller.cli.tables import field, new_table, reason


def jobs(arguments: Sequence[str] | None = None) -> int:
    """List all jobs."""
    return run_command("jobs", "List the jobs of a running controller.", arguments, _jobs)


def _jobs(controller: Controller, given: dict[str, Any]) -> int:  # noqa: ARG001
    there = list(controller.all_jobs())
    has_owners = len({job.owner for job in there}) > 1  # as an administrator sees them
    rows = new_table(
        "job", *(["owner"] if has_owners else []), "policy", "iteration", "k", "workers", "loss", "why", "last heard of"
    )
    for job in there:
        decision = job.decision
        rows.add_row(
            job.name,
            *([job.owner] if has_owners else []),
            (job.spec.policy.WhichOneof("rule") or "").replace("_", "-"),
            str(decision.iteration),
            str(decision.k),
            str(job.membership.live_workers),
            field(job, "loss"),
            reason(decision),
            job.update_time.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC"),
        )
    wide_console().print(rows if rows.row_count else "There are no jobs.")
    return 0


def delete(arguments: Sequence[str] | None = None) -> int:
    """Delete a job."""
    description = "Delete a job and all that it has learnt."
    return run_command("delete", description, arguments, _delete, JOB)


def _delete(controller: Controller, given: dict[str, Any]) -> int:
    controller.calls().DeleteJob(DeleteJobRequest(job=given["job"]))
    print(f"The job {given['job']} was deleted.")
    return 0
