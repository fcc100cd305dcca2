"""DBW+, our improvement on DBW for noisy gradients, late training, and workers that change."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dbw_controller.core.estimators.durations import Durations
from dbw_controller.core.estimators.forecast import Forecast
from dbw_controller.core.kernels import Array, Column, column, compiled, reals
from dbw_controller.core.policies.dbw import best_rate, first_choice
from dbw_controller.core.policies.dbw_plus_memory import DbwPlusMemory
from dbw_controller.core.policies.policy import Choice, Observation
from dbw_controller.core.reasons import Input, Reason

NOISE_COST = 2.6  # roughly: to a loss it takes 1 + 2.6 κ/k times as many iterations as without noise
PROBE_EVERY = 20  # iterations with k = 1, which tells no variance
DEADLINE, DEVIATIONS = 1.5, 3.0  # how many times longer than the longest usual duration an iteration may take


@dataclass(frozen=True)
class DbwPlus:
    """Chooses the k with the largest progress above its noise floor per second. The first k is n/2."""

    deadlines: bool = True  # whether decisions have one

    inputs: ClassVar = frozenset(Input) - {Input.WITHIN_WORKER_VARIANCE}  # which it can do without

    def memory(self, interrupted: bool) -> DbwPlusMemory:
        """A new memory."""
        return DbwPlusMemory(interrupted)

    def choose(self, seen: Observation) -> Choice:
        """Compare (1 + 2.6 κ/k)^−c / T̂_k; the caution c is 1 unless training has stalled."""
        memory = seen.memory if isinstance(seen.memory, DbwPlusMemory) else self.memory(interrupted=False)
        kappa, caution, gains = memory.floor.estimate(), memory.floor.caution, reals(seen.workers)
        cost = -1.0 if kappa is None else NOISE_COST * kappa
        fill_progress(cost, caution, gains)
        forecast = None if memory.forecast is None else memory.forecast.of(seen.workers)
        durations = seen.durations if forecast is None else Durations(*[forecast.seconds] * 3)
        known, k = best_rate(gains, column(durations.seconds))
        if not known:
            return first_choice(seen, (seen.workers + 1) // 2)
        reason, why = Reason.BEST_RATE, f"k = {k} has the largest progress per second"
        if k == 0:  # progress of every k is next to nothing
            k, reason = seen.workers, Reason.NO_POSITIVE_GAIN
            why = f"the noise floor of every k is above the loss: all {k} workers"
        elif k == 1 < seen.workers and (untold := memory.floor.without_variance) and untold % PROBE_EVERY == 0:
            k, reason, why = 2, Reason.PROBE, "k = 2 tells the variance, which k = 1 does not"
        why += "; no noise floor is known" if cost < 0 else f"; noise costs {cost / k:.0%} more iterations"
        why += f", to the power of {caution:.2g} since the loss has stalled" if caution > 1 else ""
        why += "" if forecast else "; of single workers nothing is known, so durations are those of ranks"
        deadlines = deadlines_of(forecast, k) if self.deadlines and forecast is not None else None
        return Choice(k, reason, why, np.asarray(gains), durations, deadlines=deadlines)


def deadlines_of(forecast: Forecast, chosen: int) -> Array:
    """When to end an iteration with each k. More gradients than come are not waited for: each wait would be longer."""
    deadlines = DEADLINE * (forecast.seconds + DEVIATIONS * forecast.deviation)
    k = max(forecast.coming, chosen)
    deadlines[k:] = deadlines[k - 1]
    return deadlines


@compiled
def fill_progress(cost: float, caution: float, gains: Column) -> None:
    """What an iteration with each k is worth beside one without noise; k where no cost is known, which is negative."""
    for i in range(len(gains)):
        gains[i] = i + 1.0 if cost < 0.0 else (1.0 + cost / (i + 1)) ** -caution
