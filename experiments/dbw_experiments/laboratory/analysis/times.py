"""When trainings reached their target, and which static k was the best."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median, stdev

from dbw_experiments.laboratory.runs import Record


@dataclass(frozen=True)
class Times:
    """When the target was reached, on the virtual clock, and how many runs never did."""

    seconds: list[float]
    unreached: int

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return len(self.seconds) + self.unreached

    @property
    def mean(self) -> float:
        """Infinite if the target is not always reached, and if nothing is known."""
        return fmean(self.seconds) if self.seconds and not self.unreached else math.inf

    @property
    def median(self) -> float:
        """Runs that never reached the target took for ever; infinite if nothing is known."""
        return median([*self.seconds, *[math.inf] * self.unreached]) if self.runs else math.inf

    @property
    def deviation(self) -> float:
        """The standard deviation of those that reached the target; 0 for a single one."""
        return stdev(self.seconds) if len(self.seconds) > 1 else 0.0

    @property
    def rank(self) -> tuple[float, float]:
        """What is smaller is better: first of all, that the target is reached."""
        return self.unreached / max(1, self.runs), fmean(self.seconds) if self.seconds else math.inf


def times_of(reached: Iterable[float | None]) -> Times:
    """When targets were reached; None where one never was."""
    times = list(reached)
    seconds = [time for time in times if time is not None]
    return Times(seconds, len(times) - len(seconds))


def best_static(records: Iterable[Record]) -> int:
    """The k of the best static policy, judged by the seeds that all of them have."""
    reached: dict[int, dict[int, float | None]] = {}
    for record in records:
        reached.setdefault(record.run.static_k, {})[record.run.seed] = record.outcome.reached
    common = set.intersection(*(set(seeds) for seeds in reached.values()))
    return min(sorted(reached), key=lambda k: times_of(reached[k][seed] for seed in common).rank)
