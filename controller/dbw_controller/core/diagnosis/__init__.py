"""What in a parameter server's reports cannot be right.

A false alarm is worse than a late one: what an accident may cause must show in several iterations, and what noise may
cause in all of a long row. Arrivals and memberships may follow the summary of their iteration, which is therefore
judged when the next one ends.
"""

from collections.abc import Callable

from dbw_controller.core.decision import Decision
from dbw_controller.core.diagnosis.arrivals import ExtraArrivals, strangers, too_many, wrong_arrivals
from dbw_controller.core.diagnosis.clock import Clock
from dbw_controller.core.diagnosis.deadlines import Deadlines
from dbw_controller.core.diagnosis.ended import Ended
from dbw_controller.core.diagnosis.finding import Finding, FindingKind, Problem
from dbw_controller.core.diagnosis.late import LateArrivals
from dbw_controller.core.diagnosis.loss import Loss
from dbw_controller.core.diagnosis.summaries import impossible_moments, missing_input, other_k
from dbw_controller.core.reports import MAX_WORKERS, Arrivals, IterationSummary, Membership, Report
from dbw_controller.core.spec import SyncMode

__all__ = ["Diagnosis", "Finding", "FindingKind"]

# In how many iterations a problem must have shown. A worker may arrive before it is told of, for example, or an
# imported state may change a decision that is followed already.
MIN_SHOWN_ITERATIONS = 5
# Few iterations last much longer than usual; where two do, it was no accident such as a suspended parameter server.
MIN_IGNORED_DEADLINES = 2


class Diagnosis:
    """What looks wrong in the reports that it is given. It forgets none of it: give it the recent ones."""

    def __init__(self, sync_mode: SyncMode = SyncMode.PUSH_WAIT) -> None:
        self.iterations = 0  # how many this is based on
        self._found: dict[FindingKind, Finding] = {}
        self._last: Ended | None = None  # not judged yet
        self._decisions: dict[int, Decision] = {}  # by iteration: one that comes late is in use later
        self._arrived: dict[int, list[Arrivals]] = {}  # from that iteration on
        self._memberships: list[Membership] = []  # since that iteration
        self._late = LateArrivals()
        self._checks: list[Callable[[Ended], Problem | None]] = [impossible_moments, missing_input, other_k]
        self._checks += [wrong_arrivals, ExtraArrivals().judge, strangers, Clock().judge, Loss().judge]
        self._checks.append(Deadlines().judge)
        if sync_mode is not SyncMode.PULL:  # there a fast worker may compute a second gradient of the same parameters
            self._checks.append(too_many)
        if sync_mode is not SyncMode.PUSH_INTERRUPT:  # there nobody finishes late
            self._checks.append(self._late.judge)

    def observe(self, report: Report, asked: Decision, answer: Decision | None, membership: Membership) -> None:
        """Take in a report that a job has accepted with this answer.

        `asked` is the job's newest decision before that, and `membership` the job's before or after.
        """
        if self._last is not None and asked.iteration <= self._last.summary.iteration:
            self._last = None  # the parameter server has begun anew, from a checkpoint
            self._arrived.clear()
            self._decisions.clear()
        self._decisions[asked.iteration] = asked
        self._learn(membership)
        for arrivals in report.arrivals:
            if arrivals.seconds.size and arrivals.preceding + arrivals.seconds.size <= MAX_WORKERS:
                self._arrive(arrivals)
        if report.membership is not None:
            self._learn(report.membership)
        summary = report.summary
        if summary is not None and summary.iteration >= asked.iteration:  # others are repeated
            missing = answer.missing_inputs if answer else frozenset()
            used = summary.iteration if summary.decision_iteration is None else summary.decision_iteration
            self._end(Ended(summary, self._decisions.get(used), missing, self._memberships))

    def _learn(self, membership: Membership) -> None:
        if self._memberships and membership == self._memberships[-1]:
            return
        self._memberships.append(membership)
        if self._last is not None:
            self._last.memberships.append(membership)

    def _arrive(self, arrivals: Arrivals) -> None:
        if self._last is not None and arrivals.iteration < self._last.summary.iteration:
            self._late.hear()
        else:
            self._arrived.setdefault(arrivals.iteration, []).append(arrivals)

    def _end(self, ended: Ended) -> None:
        self.iterations += 1
        if self._last is not None:
            self._judge(self._last, ended.summary)
        self._arrived = {i: arrived for i, arrived in self._arrived.items() if i >= ended.summary.iteration}
        self._memberships = ended.memberships[-1:]
        self._last = ended

    def _judge(self, ended: Ended, following: IterationSummary) -> None:
        iteration = ended.summary.iteration
        ended.arrivals = self._arrived.get(iteration, [])
        ended.following = following if following.iteration == iteration + 1 else None
        for kind, message in filter(None, [check(ended) for check in self._checks]):
            before = self._found.get(kind)
            count = before.iterations + (before.last_iteration != iteration) if before else 1
            self._found[kind] = Finding(kind, message, count, iteration)

    def findings(self) -> list[Finding]:
        """What looks wrong, the most serious first."""
        found = (self._found[kind] for kind in FindingKind if kind in self._found)
        return [finding for finding in found if finding.iterations >= _min_iterations(finding.kind)]


def _min_iterations(kind: FindingKind) -> int:
    return MIN_IGNORED_DEADLINES if kind is FindingKind.DEADLINE_IGNORED else MIN_SHOWN_ITERATIONS
