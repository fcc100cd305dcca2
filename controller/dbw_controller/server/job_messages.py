"""Messages about a job as the controller serves it."""

from google.protobuf.timestamp_pb2 import Timestamp

from dbw.v1.controller_pb2 import WatchJobResponse
from dbw.v1.iteration_pb2 import IterationSummary
from dbw.v1.job_pb2 import Job
from dbw_controller.server.served_job import ServedJob
from dbw_controller.wire.messages import decision_message, membership_message, spec_message


def job_message(served: ServedJob, include_estimates: bool = False) -> Job:
    """A job as the controller knows it."""
    job = served.job
    return Job(
        name=served.name,
        spec=spec_message(job.spec),
        owner=served.owner,
        create_time=_timestamp(served.created),
        update_time=_timestamp(served.updated),
        membership=membership_message(job.membership),
        decision=decision_message(served.decision, include_estimates),
        learnt_iterations=job.learnt_iterations,
        loss=job.loss,
    )


def watch_message(served: ServedJob, summary: IterationSummary, include_estimates: bool) -> WatchJobResponse:
    """A job whose iteration has ended. Fields of the summary that nobody knows are left out: they may be large."""
    known = IterationSummary()
    known.CopyFrom(summary)
    known.DiscardUnknownFields()
    return WatchJobResponse(job=job_message(served, include_estimates), summary=known)


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp
