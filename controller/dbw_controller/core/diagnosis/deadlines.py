"""Whether iterations end at the deadlines of their decisions."""

from dbw_controller.core.diagnosis.ended import Ended
from dbw_controller.core.diagnosis.finding import FindingKind, Problem
from dbw_controller.core.reports import EndCause

# How many times the deadline an iteration has to last: a busy parameter server may notice late that it has passed.
IGNORED_FACTOR = 2.0


class Deadlines:
    """Looks for iterations that went on long after a deadline, by a parameter server that has never respected one."""

    def __init__(self) -> None:
        self._respected = False  # once, at least

    def judge(self, ended: Ended) -> Problem | None:
        """Tell if an iteration did, although gradients were in before it: the first one is always waited for."""
        summary, deadline = ended.summary, ended.asked.deadline_seconds if ended.asked is not None else None
        if deadline is None or summary.fallback:
            return None
        long_after = summary.duration_seconds > IGNORED_FACTOR * deadline
        self._respected |= summary.end_cause is EndCause.DEADLINE and not long_after
        in_time = int((ended.seconds <= deadline).sum())  # NaN where it was not reported
        if self._respected or not long_after or not in_time:
            return None
        return FindingKind.DEADLINE_IGNORED, (
            f"Iteration {summary.iteration} lasted {summary.duration_seconds:.6g} s. Its decision had a deadline after "
            f"{deadline:.6g} s, and {in_time} of its gradients were in by then. End the iteration at "
            "`deadline_seconds` with what has arrived, or else with the first gradient, and say so with `end_cause`: "
            "a worker that hangs then costs little."
        )
