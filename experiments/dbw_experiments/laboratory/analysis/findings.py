"""What results say about the paper's claims, in numbers."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from dbw_controller.core.kernels import Array
from dbw_experiments.laboratory.analysis.columns import began, exact, last_accuracy, matrix, numbers, smoothed
from dbw_experiments.laboratory.analysis.durations import true_durations
from dbw_experiments.laboratory.analysis.times import best_static, times_of
from dbw_experiments.laboratory.results import Results
from dbw_experiments.laboratory.runs import Record
from dbw_experiments.laboratory.scenario import load_scenario


def mean_and_deviation(values: Sequence[float]) -> str:
    """A mean over seeds with three digits, and how far they are apart."""
    if not values:
        return "–"
    mean = fmean(values)
    digits = max(0, 2 - math.floor(math.log10(abs(mean)))) if mean else 0
    return f"{mean:.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


class Findings:
    """What there is of one scenario."""

    def __init__(self, name: str, folder: Path) -> None:
        self.scenario = load_scenario(name)
        self.records = Results(folder / name / "runs.jsonl").of(self.scenario.runs())
        self.missing = len(self.scenario.runs()) - len(self.records)

    def _some(self, case: str, policy: str, rule: str | None = None) -> list[Record]:
        theirs = [one for one in self.records if (one.run.case, one.run.policy) == (case, policy)]
        return [one for one in theirs if rule in (None, one.run.rule)]

    def _reached(self, case: str, policy: str, rule: str | None = None) -> dict[int, float]:
        """When each seed reached the target; infinite for those that never did."""
        found = {one.run.seed: one.outcome.reached for one in self._some(case, policy, rule)}
        return {seed: math.inf if reached is None else reached for seed, reached in found.items()}

    def _some_static(self, case: str, rule: str) -> list[Record]:
        wanted = (case, rule)
        return [one for one in self.records if one.run.named.is_static and (one.run.case, one.run.rule) == wanted]

    def seeds(self, case: str, policy: str, rule: str | None = None) -> int:
        """How many seeds there are."""
        return len(self._some(case, policy, rule))

    def spread(self, case: str, policy: str, rule: str | None = None) -> str:
        """When a policy reached the target: mean and standard deviation, and how many runs never did."""
        times = times_of(record.outcome.reached for record in self._some(case, policy, rule))
        never = f"{times.unreached} of {times.runs} never" if times.unreached else ""
        if not times.seconds:
            return never
        return f"{mean_and_deviation(times.seconds)} s" + (f" ({never})" if never else "")

    def best(self, case: str, rule: str) -> int:
        """The best static k with learning rates by a rule."""
        return best_static(self._some_static(case, rule))

    def speed_up(self, case: str, policy: str, over: str, rule: str) -> str:
        """How many times as fast as another policy one is: the ratio of mean times, and that of each common seed."""
        ours, others = self._reached(case, policy), self._reached(case, over, rule)
        ratios = {seed: others[seed] / ours[seed] for seed in sorted(ours.keys() & others.keys())}
        if not ratios or not all(0 < ratio < math.inf for ratio in ratios.values()):
            return "–"
        mean = fmean(others[seed] for seed in ratios) / fmean(ours[seed] for seed in ratios)
        return f"{mean:.2f}× ({min(ratios.values()):.2f} to {max(ratios.values()):.2f}; {len(ratios)} seeds)"

    def faster(self, case: str, rule: str, than: str) -> str:
        """Which static k are faster than another policy, with every seed that both have."""
        theirs = self._reached(case, than)

        def leads(k: int) -> bool:
            ours = self._reached(case, f"static:{k}", rule)
            common = ours.keys() & theirs.keys()
            return bool(common) and all(ours[seed] < theirs[seed] for seed in common)

        return _ranges([k for k in sorted({one.run.static_k for one in self._some_static(case, rule)}) if leads(k)])

    def edge(self, begin: int) -> str:
        """The median of ηL̂, which is 2 at the edge of stability, from an iteration on."""
        smoothness = self._column("estimated_smoothness")[begin:]
        return f"{np.nanmedian(smoothness * self._first('', 'dbw').run.rate):.2f}"

    def reached(self, policy: str, loss: float, rule: str | None = None) -> str:
        """When the loss of the first seed was down to a value, where curves are kept."""
        seconds = self._seconds_to(loss, self._first("", policy, rule))
        return f"{seconds:.0f} s" if math.isfinite(seconds) else "never"

    def earliest_k(self, loss: float, rule: str) -> int:
        """The static k whose first seed was the first to have a loss, where curves are kept."""
        statics = [one for one in self._some_static("", rule) if one.run.seed == 0]
        return min(statics, key=lambda record: self._seconds_to(loss, record)).run.static_k

    def _seconds_to(self, loss: float, record: Record) -> float:
        columns = record.outcome.columns
        losses = smoothed(numbers(columns["k"]), numbers(columns["loss"]), record.run.workers)
        below = np.flatnonzero(losses <= loss)
        return float(numbers(columns["seconds"])[below[0]]) if below.size else math.inf

    def accuracy(self, policy: str, rule: str | None = None) -> str:
        """The last held-out accuracy of the first seed."""
        found = last_accuracy(self._first("", policy, rule).outcome)
        return "–" if found is None else f"{100 * found:.1f} %"

    def usual_k(self, policy: str, begin: int = 0, end: int | None = None) -> str:
        """The k that were chosen most often in some iterations, with their shares."""
        return _usual(self._column("k", policy)[begin:end])

    def usual_k_between(self, policy: str, begin: float, end: float, rule: str | None = None) -> str:
        """The k that were chosen most often in some seconds, with their shares."""
        seconds = self._column("seconds", policy, rule)
        return _usual(self._column("k", policy, rule)[(begin < seconds) & (seconds <= end)])

    def mean_k(self, policy: str, begin: int = 0, end: int | None = None) -> str:
        """The mean k of some iterations."""
        return f"{self._column('k', policy)[begin:end].mean():.1f}"

    def first_k_at_most(self, policy: str, k: int, after: float, rule: str | None = None) -> float:
        """When k was first that small, after a time; infinite if it never was."""
        begun = began(self._first("", policy, rule).outcome)
        found = begun[(begun > after) & (self._column("k", policy, rule) <= k)]
        return float(found[0]) if found.size else math.inf

    def iterations_to_settle(self, case: str, policy: str, start: float, end: float) -> str:
        """After how many iterations k is what it is at the end of some seconds, and stays so for five: of each seed."""
        found = []
        for record in self._some(case, policy):
            begun, ks = began(record.outcome), numbers(record.outcome.columns["k"])
            ks = ks[(begun >= start) & (begun < end)]
            settled = np.abs(ks - np.median(ks[len(ks) // 2 :])) <= 1
            lasting = [i for i in range(len(ks) - 4) if settled[i : i + 5].all()]
            found.append(str(lasting[0]) if lasting else "never")
        return ", ".join(found)

    def _first(self, case: str, policy: str, rule: str | None = None) -> Record:
        return min(self._some(case, policy, rule), key=lambda record: record.run.seed)

    def _column(self, name: str, policy: str = "dbw", rule: str | None = None) -> Array:
        """A column of numbers of the first seed."""
        return numbers(self._first("", policy, rule).outcome.columns[name])

    def error(self, name: str) -> str:
        """By how much an estimate is off: the median over iterations of |estimate − exact| / exact."""
        estimates, measured = self._column(f"estimated_{name}"), self._column(f"exact_{name}")
        return f"{100 * np.nanmedian(np.abs(estimates - measured) / measured):.0f} %"

    def decreases(self) -> tuple[Array, Array]:
        """The estimated gain and the exact decrease of the loss, where both are known."""
        gains, measured = self._column("estimated_gain"), exact(self._first("", "dbw").outcome.columns, "gain")
        both = np.isfinite(gains) & np.isfinite(measured)
        return gains[both], measured[both]

    def correlation(self) -> str:
        """Of the estimated gain with the exact decrease."""
        return f"{np.corrcoef(*self.decreases())[0, 1]:.2f}"

    def below(self) -> str:
        """How often the estimated gain is at most the exact decrease."""
        gains, measured = self.decreases()
        return f"{100 * np.mean(gains <= measured):.0f} % of {len(gains)}"

    def negative(self) -> str:
        """How often the estimated gain is negative."""
        gains = self._column("estimated_gain")
        return f"{100 * np.mean(gains[np.isfinite(gains)] < 0):.0f} %"

    def ratio(self, begin: int = 0, end: int | None = None) -> str:
        """The median of ‖∇F‖² / V(g), exact."""
        ratios = self._column("exact_squared_norm") / self._column("exact_variance")
        return f"{np.nanmedian(ratios[begin:end]):.2g}"

    def duration_errors(self, name: str) -> "DurationErrors":
        """How good estimates of durations are."""
        record = self._first("", "dbw")
        truth = np.array(true_durations(record.run, self.scenario.folder))
        return DurationErrors(matrix(record.outcome.columns[f"{name}_durations"], record.run.workers), truth)


@dataclass(frozen=True)
class DurationErrors:
    """Estimates of durations, a row for each iteration, and the truth."""

    estimates: Array
    truth: Array

    @property
    def unknown(self) -> str:
        """How many of all estimates are not there."""
        return f"{100 * np.mean(np.isnan(self.estimates[1:])):.0f} %"

    @property
    def disordered(self) -> str:
        """In how many iterations a larger k is estimated to be faster."""
        falls = [np.any(np.diff(row[np.isfinite(row)]) < 0) for row in self.estimates[1:]]
        return f"{100 * np.mean(falls):.0f} %"

    @property
    def off(self) -> str:
        """By how much they are off in the end, those that are there: the mean of |estimate − truth| / truth."""
        last = self.estimates[-1]
        return f"{100 * np.nanmean(np.abs(last - self.truth) / self.truth):.0f} %"


def _usual(ks: Iterable[float]) -> str:
    counted = Counter(int(k) for k in ks)
    total = counted.total()
    return ", ".join(f"{k} ({100 * count / total:.0f} %)" for k, count in counted.most_common(3))


def _ranges(ks: Sequence[int]) -> str:
    """Numbers in words: 1 to 4 and 6."""
    firsts, lasts = ([k for k in ks if k + step not in ks] for step in (-1, 1))
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in zip(firsts, lasts, strict=True)]
    return " and ".join(parts) or "none"
