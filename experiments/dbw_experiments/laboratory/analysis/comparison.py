"""How policies compare with each other, and with the best static k, which one could only know afterwards."""

import math
from collections.abc import Sequence
from statistics import geometric_mean

from dbw_experiments.laboratory.analysis.times import Times, times_of
from dbw_experiments.laboratory.runs import Record
from dbw_experiments.laboratory.scenario import Scenario
from dbw_experiments.policy_names import parse_policy

BEST = "best static k"  # of a case, taken for a policy


class Comparison:
    """Times of all policies in all cases of a scenario, by their medians over seeds."""

    def __init__(self, scenario: Scenario, records: Sequence[Record]) -> None:
        self.cases = [case.name for case in scenario.cases]
        self._records = records
        reached: dict[tuple[str, str], list[float | None]] = {}
        for record in records:
            reached.setdefault((record.run.case, record.run.policy), []).append(record.outcome.reached)
        self._times = {key: times_of(times) for key, times in reached.items()}
        self._best = {case: self._best_static(case) for case in self.cases}

    def _best_static(self, case: str) -> str | None:
        there = [policy for one, policy in self._times if one == case and parse_policy(policy).is_static]
        return min(there, key=lambda policy: self._times[case, policy].median, default=None)

    def best_k(self, case: str) -> int | None:
        """The best static k of a case; None if no result is there."""
        ks = {record.run.static_k for record in self._records if record.run.policy == self._best[case]}
        return ks.pop() if ks else None

    def times(self, case: str, policy: str) -> Times:
        """When the target was reached; none if no result is there."""
        return self._times.get((case, (self._best[case] or "") if policy == BEST else policy), Times([], 0))

    def speeds(self, case: str, policy: str) -> tuple[float, float, float] | None:
        """How fast a policy's slowest, median and fastest seeds are beside the best static k; None if not known."""
        times, best = self.times(case, policy), self.times(case, BEST).median
        if not times.runs or not math.isfinite(best):
            return None
        slowest = 0.0 if times.unreached else best / max(times.seconds)
        return slowest, best / times.median, best / min(times.seconds, default=math.inf)

    def speed_up(self, case: str, policy: str, *others: str) -> float:
        """How many times as fast a policy is as the fastest of others; NaN if none of both reached the target."""
        own, other = self.times(case, policy).median, min(self.times(case, some).median for some in others)
        return math.nan if own == other == math.inf else other / own

    def speed_ups(self, policy: str, *others: str) -> list[float]:
        """The same in all cases that have a result of the policy."""
        there = [case for case in self.cases if self.times(case, policy).runs]
        return [self.speed_up(case, policy, *others) for case in there]

    def mean_speed_up(self, policy: str, *others: str) -> float:
        """Their geometric mean."""
        return geometric_mean(self.speed_ups(policy, *others))

    def iterations(self, case: str, k: int) -> float:
        """How many iterations a static k needed, the geometric mean over seeds; NaN if not all reached the target."""
        some = [one for one in self._records if (one.run.case, one.run.policy) == (case, f"static:{k}")]
        if not some or any(one.outcome.reached is None for one in some):
            return math.nan
        return geometric_mean([one.outcome.iterations for one in some])
