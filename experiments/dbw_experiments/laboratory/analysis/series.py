"""Runs that belong together: those of a policy with its learning rates."""

from collections.abc import Sequence
from dataclasses import dataclass

from dbw_experiments.laboratory.analysis.times import Times, times_of
from dbw_experiments.laboratory.runs import Record
from dbw_experiments.laboratory.scenario import Case, Scenario
from dbw_experiments.policy_names import parse_policy


@dataclass(frozen=True)
class Series:
    """A policy with its learning rates, in all cases and for all seeds."""

    policy: str
    rule: str
    label: str
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
        found.setdefault((record.run.policy, record.run.rule), []).append(record)
    policies = [policy for policy, _ in found]
    return [
        Series(policy, rule, parse_policy(policy).label + (f", {rule}" if policies.count(policy) > 1 else ""), theirs)
        for (policy, rule), theirs in found.items()
    ]
