"""A parameter server, simulated, that may make a mistake."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from dbw_controller.core.decision import Decision
from dbw_controller.core.diagnosis import Diagnosis, Finding, FindingKind
from dbw_controller.core.job import Job
from dbw_controller.core.policies import AdaSync, BlindDbw, Dbw, Policy, Static, Sync
from dbw_controller.core.reports import Arrivals, EndCause, GradientMoments, IterationSummary, Membership, Report
from dbw_controller.core.spec import JobSpec, SyncMode
from tests.cluster import Array, Iteration, RoundTrips, iterations, shifted_exponential

Change = Callable[[Report], Report]
POLICIES: list[Policy] = [Dbw(), BlindDbw(), AdaSync(), Sync(), Static(1), Static(3)]


class Training:
    """SGD on ½‖w‖², with noise."""

    def __init__(self, rng: np.random.Generator, learning_rate: float = 0.02) -> None:
        self._rng = rng
        self._rate = learning_rate
        self._w = rng.normal(0.0, 1.0, 20)

    def step(self, k: int) -> dict[str, Any]:
        """What a summary tells of an iteration with k gradients."""
        gradients = self._w + self._rng.normal(0.0, 0.3, (k, 20))
        losses = (0.5 * self._w @ self._w + 0.1) * (1 + 0.05 * self._rng.normal(0.0, 1.0, k))
        mean = gradients.mean(axis=0)
        self._w = self._w - self._rate * mean
        moments = GradientMoments(float(mean @ mean), sum_squared_norms=float((gradients**2).sum()))
        return {"loss": float(losses.mean()), "learning_rate": self._rate, "moments": moments}


@dataclass
class Server:
    """A parameter server and its cluster; `change` makes its mistake."""

    workers: int = 8
    policy: Policy = field(default_factory=Dbw)
    seed: int = 0
    round_trips: RoundTrips = shifted_exponential
    sync_mode: SyncMode = SyncMode.PUSH_WAIT
    publishes: bool = True  # whether it tells when parameters are published
    numbers: bool = True  # whether it tells its workers apart
    update_seconds: float = 0.05  # between the end of an iteration and the next publication
    repeats: bool = False
    splits: bool = False  # whether arrivals are reported before and after the summary, not with it
    tells_membership_after: bool = False
    change: Change = lambda report: report
    k_min: int = 1
    respects_deadlines: bool = True
    delay: int = 0  # how many iterations late answers come

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.training = Training(self.rng)
        self.iteration = 0
        self.clock = 123.0
        self.first_number = 0
        self.late: list[tuple[float, Arrivals]] = []
        self.job = Job(JobSpec(self.policy, self.k_min, sync_mode=self.sync_mode), self.membership())
        self.diagnosis = Diagnosis(self.sync_mode)
        self.answer: Decision = self.job.decision()  # the one in use
        self.on_their_way: list[Decision] = []  # later ones
        self.cluster = self.new_cluster()

    def membership(self) -> Membership:
        numbers = range(self.first_number, self.first_number + self.workers)
        return Membership(self.workers, list(numbers) if self.numbers else None)

    def new_cluster(self) -> Iterator[Iteration]:
        return iterations(
            self.rng,
            self.workers,
            lambda: min(self.answer.k, self.workers),
            self.round_trips,
            lambda: self.answer.deadline_seconds if self.respects_deadlines else None,
        )

    def replace_workers(self, workers: int) -> Membership:
        """Others come: half of them, if there were as many before."""
        self.first_number += self.workers // 2
        self.workers = workers
        self.cluster = self.new_cluster()
        return self.membership()

    def send(self, report: Report) -> Decision | None:
        report = self.change(report)
        for _ in range(1 + self.repeats):
            asked, membership = self.job.decision(), self.job.membership
            answer = self.job.report(report)
            membership = self.job.membership if self.tells_membership_after else membership
            self.diagnosis.observe(report, asked, answer, membership)
        return answer

    def arrived(self, seconds: Array, preceding: int, workers: npt.NDArray[np.int64]) -> list[Arrivals]:
        numbers = workers[preceding : preceding + len(seconds)] if self.numbers else None
        return [Arrivals(self.iteration, seconds, preceding, numbers)] if len(seconds) else []

    def due(self) -> list[Arrivals]:
        """Late arrivals that have come by now."""
        due = [arrivals for at, arrivals in self.late if at <= self.clock]
        self.late = [(at, arrivals) for at, arrivals in self.late if at > self.clock]
        return due

    def step(self, membership: Membership | None = None, sent: bool = True, **fields: Any) -> None:
        """One iteration; its report may get lost."""
        ran = next(self.cluster)
        k, seconds, workers, duration = ran.k, ran.arrivals, self.first_number + ran.workers, ran.seconds
        cause = EndCause.DEADLINE if k < min(self.answer.k, self.workers) else EndCause.K_REACHED
        in_time, late = self.arrived(seconds[:k], 0, workers), []
        if self.sync_mode is not SyncMode.PUSH_INTERRUPT:
            late = [self.arrived(seconds[i : i + 1], i, workers)[0] for i in range(k, len(seconds))]
        told = {**self.training.step(k), "end_cause": cause}
        if self.publishes:
            told["published_seconds"] = self.clock
        if self.delay and self.answer.iteration != self.iteration:
            told["decision_iteration"] = self.answer.iteration
        told |= fields
        summary = IterationSummary(self.iteration, k, duration, **told)
        self.late += [(self.clock + float(arrivals.seconds[0]), arrivals) for arrivals in late]
        self.clock += duration
        self.iteration += 1
        if not sent:
            return
        in_time += self.due()
        if self.splits:
            first, second = halves(in_time[0])
            self.send(Report([first]))
            answer = self.send(Report(summary=summary, membership=membership))
            self.send(Report([second, *in_time[1:]]))
        else:
            answer = self.send(Report(in_time, summary, membership))
        assert answer is not None
        self.on_their_way.append(answer)
        if len(self.on_their_way) > self.delay:
            self.answer = self.on_their_way.pop(0)
        self.clock += self.update_seconds

    def run(self, count: int = 300) -> "Server":
        for _ in range(count):
            self.step()
        return self

    @property
    def findings(self) -> list[Finding]:
        return self.diagnosis.findings()

    @property
    def kinds(self) -> list[FindingKind]:
        return [finding.kind for finding in self.findings]


def halves(arrivals: Arrivals) -> tuple[Arrivals, Arrivals]:
    half, workers = arrivals.seconds.size // 2, arrivals.workers
    first, second = (None, None) if workers is None else (workers[:half], workers[half:])
    return (
        replace(arrivals, seconds=arrivals.seconds[:half], workers=first),
        replace(arrivals, seconds=arrivals.seconds[half:], workers=second, preceding=half),
    )


def changed_summary(change: Callable[[IterationSummary], dict[str, Any]]) -> Change:
    """A mistake in every summary."""

    def apply(report: Report) -> Report:
        summary = report.summary
        return report if summary is None else replace(report, summary=replace(summary, **change(summary)))

    return apply


def told(**fields: Any) -> Change:
    """The same mistake in every summary."""
    return changed_summary(lambda _: fields)


def changed_arrivals(change: Callable[[Arrivals], Arrivals | None]) -> Change:
    """A mistake in all arrivals."""

    def apply(report: Report) -> Report:
        changed = (change(arrivals) for arrivals in report.arrivals)
        return replace(report, arrivals=[arrivals for arrivals in changed if arrivals is not None])

    return apply


def both(first: Change, second: Change) -> Change:
    return lambda report: second(first(report))


def observe(job: Job, diagnosis: Diagnosis, report: Report) -> None:
    asked, membership = job.decision(), job.membership
    answer = job.report(report)
    diagnosis.observe(report, asked, answer, membership)
