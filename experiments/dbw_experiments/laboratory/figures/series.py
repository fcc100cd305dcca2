"""Runs that belong together in a figure, with a name and a colour that are the same everywhere."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from dbw_experiments.laboratory.figures.canvas import Style
from dbw_experiments.laboratory.runs import Record, Run
from dbw_experiments.laboratory.scenario import Case, Scenario

# Okabe and Ito's colours, which nearly everybody can tell apart.
COLOURS = {"dbw": "#0072B2", "b-dbw": "#D55E00", "adasync": "#009E73", "dbw-plus": "#CC3311"}
COLOURS |= {"adasync:1": "#009E73", "adasync:2": "#E69F00"}
ALL = "#333333"  # waiting for all n workers
FURTHER = ["#E69F00", "#CC79A7", "#56B4E9", "#999999", "#B8A800"]  # in order of appearance
RAMP = colormaps["RdPu"]
FIRST: dict[str, Style] = {"b-dbw": (0, (4, 1.2)), "adasync": (0, (7, 1.2, 1.5, 1.2))}  # styles: they may coincide
NEXT: list[Style] = ["-", (0, (2, 1)), (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1))]  # of a policy's further learning rates
NAMES = {"dbw": "DBW", "b-dbw": "B-DBW", "adasync": "AdaSync", "dbw-plus": "DBW+"}


@dataclass(frozen=True)
class Series:
    """A policy with its learning rates, in all cases and for all seeds."""

    policy: str
    rule: str
    label: str
    colour: str
    style: Style
    records: list[Record]

    @property
    def is_static(self) -> bool:
        """Whether k never changes."""
        return is_static(self.policy)

    def of(self, case: Case) -> "Times":
        """When the target was reached in a case."""
        return times_of(record.outcome.reached for record in self.records if record.run.case == case.name)

    def first(self, case: Case) -> Record | None:
        """The run of the first seed, of those that are there."""
        there = [record for record in self.records if record.run.case == case.name]
        return min(there, key=lambda record: record.run.seed, default=None)


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
        return fmean(self.seconds) if self.seconds and not self.unreached else float("inf")

    @property
    def deviation(self) -> float:
        """The standard deviation of those that reached the target; 0 for a single one."""
        return stdev(self.seconds) if len(self.seconds) > 1 else 0.0

    @property
    def rank(self) -> tuple[float, float]:
        """What is smaller is better: first of all, that the target is reached."""
        return self.unreached / max(1, self.runs), fmean(self.seconds) if self.seconds else float("inf")


def best_static(records: Iterable[Record]) -> int:
    """The k of the best static policy, judged by the seeds that all of them have."""
    reached: dict[int, dict[int, float | None]] = {}
    for record in records:
        reached.setdefault(static_k(record.run), {})[record.run.seed] = record.outcome.reached
    common = set.intersection(*(set(seeds) for seeds in reached.values()))
    return min(sorted(reached), key=lambda k: times_of(reached[k][seed] for seed in common).rank)


def times_of(reached: Iterable[float | None]) -> Times:
    """When targets were reached; None where one never was."""
    times = list(reached)
    seconds = [time for time in times if time is not None]
    return Times(seconds, len(times) - len(seconds))


def series_of(scenario: Scenario, records: Sequence[Record]) -> list[Series]:
    """All series of a scenario, in its order, also those of which nothing is known yet."""
    found: dict[tuple[str, str], list[Record]] = {(run.policy, run.rule): [] for run in scenario.runs()}
    for record in records:
        found.setdefault((record.run.policy, record.run.rule), []).append(record)
    rules: dict[str, list[str]] = {}
    for policy, rule in found:
        rules.setdefault(policy, []).append(rule)
    workers = {case.workers for case in scenario.cases}
    others = [policy for policy in rules if not _fixed_colour(policy, workers)]
    colours = dict(zip(others, _further_colours(len(others)), strict=True))
    return [
        Series(
            policy,
            rule,
            label_of(policy) + (f", {rule}" if len(rules[policy]) > 1 else ""),
            _fixed_colour(policy, workers) or colours[policy],
            _style(policy, rules[policy].index(rule)),
            found[policy, rule],
        )
        for policy, rule in found
    ]


def is_static(policy: str) -> bool:
    """Whether a policy's k never changes."""
    return policy.partition(":")[0] in ("static", "sync")


def static_k(run: Run) -> int:
    """The k of a static policy."""
    name, _, k = run.policy.partition(":")
    return run.workers if name == "sync" else int(float(k.rpartition("=")[2]))


def label_of(policy: str) -> str:
    """How a policy is called in figures: DBW, k = 8."""
    name, _, parameters = policy.partition(":")
    if name == "static":
        return f"k = {parameters.rpartition('=')[2]}"
    if name == "sync":
        return "k = n"
    return NAMES.get(name, name) + (f" ({parameters})" if parameters else "")


def _fixed_colour(policy: str, workers: set[int]) -> str | None:
    if policy == "sync" or any(policy == f"static:{n}" for n in workers):
        return ALL
    return COLOURS.get(policy)


def _further_colours(count: int) -> list[str]:
    """As many colours as there are other policies: shades, if there are many, as these are static k's."""
    return FURTHER[:count] if count <= len(FURTHER) else list(map(to_hex, RAMP(np.linspace(0.25, 1, count))))


def _style(policy: str, index: int) -> Style:
    return FIRST[policy] if index == 0 and policy in FIRST else NEXT[index % len(NEXT)]
