"""What has happened in a run so far, and whether it is over."""

import math
from collections import defaultdict, deque
from typing import Any

from dbw_controller.core.job import Job
from dbw_controller.core.kernels import Array
from dbw_experiments.laboratory.cluster import Iteration
from dbw_experiments.laboratory.learning import Learnt
from dbw_experiments.laboratory.runs import Outcome, Run

MEASUREMENTS = 3  # of the loss on the same examples, whose mean is compared with the target
DIGITS = 6  # that are kept of each iteration's numbers


class LatestLoss:
    """The mean loss over the latest iterations that have n gradients: so noise does not favour those with a small k."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._latest: deque[tuple[float, float]] = deque()  # k and loss

    def add(self, k: float, loss: float) -> float:
        """Take an iteration in; returns the mean."""
        self._latest.append((k, loss))
        while self.gradients - self._latest[0][0] >= self._workers:
            self._latest.popleft()
        return self.mean

    @property
    def gradients(self) -> float:
        """How many gradients it is over, fewer than n at first."""
        return sum(k for k, _ in self._latest)

    @property
    def mean(self) -> float:
        """0 before the first iteration."""
        return sum(k * loss for k, loss in self._latest) / self.gradients if self._latest else 0.0


class History:
    """Collects a run's iterations."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.iterations = self._gradients = 0
        self._now = 0.0
        self._latest = LatestLoss(run.workers)  # what the target is for
        self._measured: deque[float] = deque(maxlen=MEASUREMENTS)
        self._reached: float | None = None
        self._columns: dict[str, list[Any]] = defaultdict(list)

    @property
    def is_over(self) -> bool:
        """Whether the run need not go on."""
        run = self._run
        out_of_time = self.iterations >= run.iterations or (run.seconds is not None and self._now >= run.seconds)
        return out_of_time or self._reached is not None or not math.isfinite(self._latest.mean)

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
        mean = self._latest.add(k, loss)
        judged = None
        if learnt.loss is not None:
            self._measured.append(learnt.loss)
            judged = sum(self._measured) / MEASUREMENTS if len(self._measured) == MEASUREMENTS else None
        elif not self._run.target_every:
            judged = mean if self._latest.gradients >= self._run.workers else None
        target = self._run.target_loss
        if target is not None and judged is not None and judged <= target:
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
            loss=self._latest.mean if math.isfinite(self._latest.mean) else None,
            columns=dict(self._columns),
        )

    def _note(self, **values: float | list[float | None] | None) -> None:
        for name, value in values.items():
            self._columns[name].append(_shortened(value) if isinstance(value, float) else value)


def _rounded(values: Array) -> list[float | None]:
    return [_shortened(value) for value in values.tolist()]


def _shortened(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
