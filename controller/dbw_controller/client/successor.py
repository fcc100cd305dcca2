"""Whether a process that has taken a job over still uses it, judging by what the controller says of the job.

Like conversation.py, this holds no clock. Times of the controller's clock are compared only with each other, and so are
those of its caller's.
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
                self._iteration_seconds = max(self._iteration_seconds, _iteration_seconds(self._seen, job))
            self._seen, self._seen_at = job, now
            return False
        iteration = max(iteration_seconds, self._iteration_seconds)
        return now - self._seen_at >= max(self._silent_seconds, SILENT_ITERATIONS * iteration)


def _iteration_seconds(earlier: Job, later: Job) -> float:
    """How long iterations between two looks at a job took, on average."""
    seconds = (later.update_time.ToNanoseconds() - earlier.update_time.ToNanoseconds()) / 1e9
    return seconds / max(later.decision.iteration - earlier.decision.iteration, 1)
