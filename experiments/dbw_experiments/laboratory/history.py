"""What has happened in a run so far, and whether it is over."""

import math
from collections import defaultdict, deque
from typing import Any

from dbw_controller.estimators.compiled import Array
from dbw_controller.job import Job
from dbw_experiments.laboratory.cluster import Iteration
from dbw_experiments.laboratory.learning import Learnt
from dbw_experiments.laboratory.runs import Outcome, Run

DIGITS = 6  # that are kept of each iteration's numbers


class History:
    """Collects a run's iterations."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.iterations = self._gradients = 0
        self._now = 0.0
        self._latest: deque[tuple[int, float]] = deque()  # k and loss of the iterations that the loss is judged by
        self._reached: float | None = None
        self._columns: dict[str, list[Any]] = defaultdict(list)

    @property
    def loss(self) -> float:
        """The mean over the latest iterations that have n gradients: so noise does not favour those with a small k."""
        gradients = sum(k for k, _ in self._latest)
        return sum(k * loss for k, loss in self._latest) / gradients if gradients else 0.0

    @property
    def is_over(self) -> bool:
        """Whether the run need not go on."""
        run = self._run
        out_of_time = self.iterations >= run.iterations or (run.seconds is not None and self._now >= run.seconds)
        return out_of_time or self._reached is not None or not math.isfinite(self.loss)

    def decided(self, job: Job) -> None:
        """A decision was made for the iteration that begins."""
        if self._run.detail == "summary":
            return
        decision = job.decision()
        gain = decision.estimates.gain
        self._note(
            estimated_squared_norm=gain.squared_norm,
            estimated_variance=gain.variance,
            estimated_smoothness=gain.smoothness,
        )
        if self._run.detail == "estimates":
            gains, n = gain.gains(self._run.workers), self._run.workers
            self._note(
                estimated_gain=None if gains is None else gains.item(decision.k - 1),
                estimated_durations=_rounded(job.durations.estimate().seconds[:n]),
                average_durations=_rounded(job.durations.averages()[:n]),
            )

    def ended(self, iteration: Iteration, learnt: Learnt, now: float) -> None:
        """An iteration has ended."""
        k, loss = iteration.end.k, learnt.moments.loss
        assert loss is not None
        self.iterations += 1
        self._gradients += k
        self._now = now
        self._latest.append((k, loss))
        while sum(some for some, _ in self._latest) - self._latest[0][0] >= self._run.workers:
            self._latest.popleft()
        enough = sum(some for some, _ in self._latest) >= self._run.workers
        target = self._run.target_loss
        if target is not None and enough and self.loss <= target:
            self._reached = now
        if self._run.detail != "summary":
            self._note(seconds=now, k=k, loss=loss)
            if self._run.accuracy_every:
                self._note(accuracy=learnt.accuracy)
            if self._run.exact_every:
                exact = (None, None, None) if learnt.exact is None else learnt.exact
                self._note(**dict(zip(("exact_loss", "exact_squared_norm", "exact_variance"), exact, strict=True)))

    def outcome(self) -> Outcome:
        """What came of the run."""
        return Outcome(
            reached=self._reached,
            iterations=self.iterations,
            gradients=self._gradients,
            seconds=self._now,
            loss=self.loss if math.isfinite(self.loss) else None,
            columns=dict(self._columns),
        )

    def _note(self, **values: float | list[float | None] | None) -> None:
        for name, value in values.items():
            self._columns[name].append(_shortened(value) if isinstance(value, float) else value)


def _rounded(values: Array) -> list[float | None]:
    return [_shortened(value) for value in values.tolist()]


def _shortened(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
