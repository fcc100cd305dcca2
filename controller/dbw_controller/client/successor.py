"""Whether a process that has taken a job over still uses it, judging by what the controller says of the job.

Like conversation.py, this holds no clock, and it compares only times of its caller's.
"""

from dbw.v1.job_pb2 import Job

# Nobody uses a job that has not changed for this many seconds, and this many iterations of either process.
SILENT_SECONDS, SILENT_ITERATIONS = 60.0, 5.0


class Successor:
    """The process that has taken a job over, as far as it can be seen from `GetJob`."""

    def __init__(self, silent_seconds: float) -> None:
        self._silent_seconds = silent_seconds
        self._seen: Job | None = None  # when the job was last found changed
        self._seen_at = 0.0
        self._iteration_seconds = 0.0

    def has_gone(self, job: Job | None, now: float, iteration_seconds: float) -> bool:
        """Take in the job as it is `now`, None if there is none; `iteration_seconds` is what our iterations take."""
        if job is None:
            return True
        if self._seen is None or job.update_time != self._seen.update_time:
            if self._seen is not None:
                iterations = max(job.decision.iteration - self._seen.decision.iteration, 1)
                self._iteration_seconds = max(self._iteration_seconds, (now - self._seen_at) / iterations)
            self._seen, self._seen_at = job, now
        iteration = max(iteration_seconds, self._iteration_seconds)
        # Earlier controllers do not say it, and know nothing of a stream that is open, though nothing comes on it.
        silent = job.silent_seconds if job.HasField("silent_seconds") else now - self._seen_at
        return silent >= max(self._silent_seconds, SILENT_ITERATIONS * iteration)
