"""Runs that belong together, with a colour and a style that are the same in all figures."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from dbw_experiments.laboratory.analysis.times import Times, times_of
from dbw_experiments.laboratory.figures.canvas import Style
from dbw_experiments.laboratory.runs import Record
from dbw_experiments.laboratory.scenario import Case, Scenario
from dbw_experiments.policy_names import parse_policy

# Okabe and Ito's colours, which nearly everybody can tell apart.
COLOURS = {"dbw": "#0072B2", "b-dbw": "#D55E00", "adasync": "#009E73", "dbw-plus": "#CC3311"}
COLOURS |= {"adasync:1": "#009E73", "adasync:2": "#E69F00"}
ALL = "#333333"  # waiting for all n workers
FURTHER = ["#E69F00", "#CC79A7", "#56B4E9", "#999999", "#B8A800"]  # in order of appearance
RAMP = colormaps["RdPu"]
FIRST: dict[str, Style] = {"b-dbw": (0, (4, 1.2)), "adasync": (0, (7, 1.2, 1.5, 1.2))}  # styles: they may coincide
NEXT: list[Style] = ["-", (0, (2, 1)), (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1))]  # of a policy's further learning rates


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
        return parse_policy(self.policy).is_static

    def there(self, case: Case) -> list[Record]:
        """What is known of a case."""
        return [record for record in self.records if record.run.case == case.name]

    def of(self, case: Case) -> Times:
        """When the target was reached in a case."""
        return times_of(record.outcome.reached for record in self.there(case))

    def first(self, case: Case) -> Record | None:
        """The run of the first seed, of those that are there."""
        return min(self.there(case), key=lambda record: record.run.seed, default=None)


def series_of(scenario: Scenario, records: Sequence[Record]) -> list[Series]:
    """All series of a scenario, in its order, also those of which nothing is known yet."""
    found: dict[tuple[str, str], list[Record]] = {(run.policy, run.rule): [] for run in scenario.runs()}
    for record in records:
        found[record.run.policy, record.run.rule].append(record)
    policies = [policy for policy, _ in found]
    colours, series = _colours(scenario, policies), []
    for i, ((policy, rule), theirs) in enumerate(found.items()):
        label = parse_policy(policy).label + (f", {rule}" if policies.count(policy) > 1 else "")
        index = policies[:i].count(policy)
        style = FIRST[policy] if index == 0 and policy in FIRST else NEXT[index % len(NEXT)]
        series.append(Series(policy, rule, label, colours[policy], style, theirs))
    return series


def _colours(scenario: Scenario, policies: Sequence[str]) -> dict[str, str]:
    """A colour for each policy. Those without one of their own are shades if there are many: these are static k."""
    fixed = COLOURS | dict.fromkeys(["sync", *(f"static:{case.workers}" for case in scenario.cases)], ALL)
    others = [policy for policy in dict.fromkeys(policies) if policy not in fixed]
    shades = FURTHER if len(others) <= len(FURTHER) else map(to_hex, RAMP(np.linspace(0.25, 1, len(others))))
    return fixed | dict(zip(others, shades, strict=False))
