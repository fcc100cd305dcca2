"""The knee rule: the learning rate beyond which training is hardly faster, from short trainings with many rates.

The paper takes it from Smith (2017): raise the learning rate, and see where the curve of what is learnt flattens.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np

from dbw_experiments.laboratory.analysis.columns import numbers
from dbw_experiments.laboratory.runs import Record, Run

NEARLY_ALL = 0.95  # of what the best rate lowers the loss by
RATES = [float(f"{0.005 * 2 ** (i / 2):.2g}") for i in range(17)]  # from 0.005 to 1.3


class Curve(NamedTuple):
    """What short trainings come to with each learning rate in their last quarter; infinite where they diverge."""

    first_loss: float
    losses: Mapping[float, float]

    @property
    def knee(self) -> float | None:
        """The smallest rate that lowers the loss by nearly as much as the best one; None if all of them raise it."""
        fall = self.first_loss - min(self.losses.values())
        if fall <= 0:
            return None
        return min(rate for rate, loss in self.losses.items() if self.first_loss - loss >= NEARLY_ALL * fall)


def knee_runs(common: Run, ks: Sequence[int], seeds: int) -> list[Run]:
    """The trainings that are needed to find the knees of some k."""
    return [
        msgspec.structs.replace(common, policy=f"static:{k}", rate=rate, seed=seed, rule="knee", detail="curves")
        for seed in range(seeds)
        for k in ks
        for rate in RATES
    ]


def curves(records: Sequence[Record]) -> dict[int, Curve]:
    """The curve of each k, means over the seeds."""
    first: dict[int, list[float]] = defaultdict(list)
    last: dict[int, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run, outcome in ((record.run, record.outcome) for record in records):
        losses = np.nan_to_num(numbers(outcome.columns["loss"]), nan=math.inf).tolist()
        first[run.static_k].append(losses[0])
        last[run.static_k][run.rate].append(fmean(losses[-max(1, len(losses) // 4) :]))
    return {
        k: Curve(fmean(first[k]), {rate: fmean(losses) for rate, losses in sorted(last[k].items())})
        for k in sorted(last)
    }
