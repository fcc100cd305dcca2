"""What happened to one job since this process knows it, counted for those who watch."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dbw_controller.core.decision import Decision
from dbw_controller.core.reasons import Reason
from dbw_controller.core.reports import Arrivals, IterationSummary

# Iterations take from milliseconds to minutes, decisions from microseconds to, with cvxpy, seconds.
ITERATION_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
DECISION_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)
# Workers that have gone keep their series until others need the room: numbers are never used again.
SERIES_A_WORKER = 2


class Histogram:
    """How often a quantity was up to each of some bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts = bounds, [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Each bound with the number of values up to it, as Prometheus wants them."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, np.cumsum(self._counts).tolist(), strict=True))


@dataclass
class Statistics:
    """Counters of one job."""

    iterations: int = 0
    used_gradients: int = 0
    lost_gradients: int = 0
    predicted_seconds: float = 0.0  # what iterations were expected to take,
    observed_seconds: float = 0.0  # and what those took
    iteration_seconds: Histogram = field(default_factory=lambda: Histogram(ITERATION_BOUNDS))
    decision_seconds: Histogram = field(default_factory=lambda: Histogram(DECISION_BOUNDS))
    decisions: Counter[Reason] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    worker_arrivals: Counter[int] = field(default_factory=Counter)
    worker_seconds: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))

    def ended(self, summary: IterationSummary, decided: Decision | None) -> None:
        """Count an iteration, with the decision that was made for it if there was one."""
        self.iterations += 1
        self.used_gradients += summary.k
        self.lost_gradients += summary.lost_gradients
        self.iteration_seconds.observe(summary.duration_seconds)
        if summary.fallback:
            self.fallbacks["parameter_server"] += 1
        durations = decided.estimates.durations if decided is not None else None
        if durations is not None and summary.k <= len(durations.seconds):
            expected = float(durations.seconds[summary.k - 1])
            if expected == expected:  # not NaN
                self.predicted_seconds += expected
                self.observed_seconds += summary.duration_seconds

    def decided(self, decision: Decision, seconds: float) -> None:
        """Count a decision, and how long it took to make."""
        self.decisions[decision.reason] += 1
        self.decision_seconds.observe(seconds)
        if decision.reason is Reason.NOT_ENOUGH_DATA:
            self.fallbacks["not_enough_data"] += 1

    def arrived(self, arrivals: Arrivals, live_workers: int) -> None:
        """Count arrivals by worker: of those that were heard of last, twice as many as are alive."""
        if arrivals.workers is None:
            return
        for worker, seconds in zip(arrivals.workers, arrivals.seconds.tolist(), strict=True):
            self.worker_arrivals[worker] = self.worker_arrivals.pop(worker, 0) + 1  # it is the last one now
            self.worker_seconds[worker] += seconds
        while len(self.worker_arrivals) > SERIES_A_WORKER * max(live_workers, 1):
            oldest = next(iter(self.worker_arrivals))
            del self.worker_arrivals[oldest], self.worker_seconds[oldest]
