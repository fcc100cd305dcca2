"""How much an iteration lowers the loss: the gain Ĝ_k for every k (paper, Section 3.1)."""

import math
from collections import Counter, deque
from collections.abc import Collection
from enum import StrEnum

import numpy as np
from msgspec import Raw, Struct

from dbw_controller.core.kernels import Array, Column, compiled, reals
from dbw_controller.core.reports import GradientMoments, IterationSummary
from dbw_controller.core.state import Count, K, Real, decode_reals, encode

# Squared norms may contradict each other by rounding, relative to their size: in single precision, and a little more.
CANCELLATION = 1e-3


class Skipped(StrEnum):
    """Why an iteration did not contribute to an estimate."""

    SINGLE_GRADIENT = "single_gradient"  # k = 1 has no variance
    SPREAD_MISSING = "spread_missing"  # neither the squared norms' sum nor the variance was told
    MOMENTS_NOT_FINITE = "moments_not_finite"
    MOMENTS_IMPOSSIBLE = "moments_impossible"  # no gradients have such norms
    LOSS_NOT_FINITE = "loss_not_finite"
    LEARNING_RATE_IMPOSSIBLE = "learning_rate_impossible"  # negative or not finite
    SMOOTHNESS_UNKNOWN = "smoothness_unknown"  # of two iterations in a row: the first told too little


def gradient_variance(k: int, moments: GradientMoments) -> float | Skipped:
    """V̂⁺, the variance of one worker's gradient (e:sumvariancekt), pooled with that seen inside the workers."""
    mean, squares, variance = moments.mean_squared_norm, moments.sum_squared_norms, moments.variance
    within, within_freedom = moments.within_worker_variance, moments.degrees_of_freedom
    if within is None:
        within, within_freedom = 0.0, 0
    if not all(map(math.isfinite, (mean, squares or 0.0, variance or 0.0, within))):
        return Skipped.MOMENTS_NOT_FINITE
    between, freedom = 0.0, 0
    if k > 1 and squares is not None:
        between, freedom = squares - k * mean, k - 1
    elif k > 1 and variance is not None:
        between, freedom = variance * (k - 1), k - 1
    if mean < 0 or within < 0 or between < -CANCELLATION * (squares or 0.0):
        return Skipped.MOMENTS_IMPOSSIBLE
    if freedom + within_freedom == 0:
        return Skipped.SINGLE_GRADIENT if k == 1 else Skipped.SPREAD_MISSING
    pooled = (max(between, 0.0) + within * within_freedom) / (freedom + within_freedom)
    return pooled if math.isfinite(pooled) else Skipped.MOMENTS_NOT_FINITE


def squared_gradient_norm(k: int, mean_squared_norm: float, variance: float) -> float:
    """‖∇F‖²⁺, the squared norm of the full gradient (e:normsquarekt)."""
    return max(mean_squared_norm - variance / k, 0.0)


class Step(Struct, frozen=True):
    """What one iteration told, as far as it did."""

    iteration: Count
    k: K
    loss: Real | None
    learning_rate: Real | None
    squared_norm: Real | None
    variance: Real | None


def smoothness(step: Step, next_loss: float) -> float:
    """L̂⁺ (e:estimateL) from a step and the loss after it; NaN where they do not determine it."""
    loss, rate, squared_norm, variance = step.loss, step.learning_rate, step.squared_norm, step.variance
    if loss is None or rate is None or squared_norm is None or variance is None:
        return math.nan
    decrease = loss - next_loss
    denominator = rate * rate * (squared_norm + variance / step.k)
    return 2 * (rate * squared_norm - decrease) / denominator if denominator else math.nan


class GainEstimate(Struct, frozen=True, array_like=True):
    """What the gain is made of; None where too little is known."""

    squared_norm: Real | None  # ‖∇F‖² (e:normsquareoverD)
    variance: Real | None  # V(g) (e:varianceoverD)
    smoothness: Real | None  # L (e:LoverD), never negative
    learning_rate: Real | None  # η

    def gains(self, workers: int) -> Array | None:
        """Ĝ_k for each k from 1 to n (e:gain)."""
        rate, squared_norm = self.learning_rate, self.squared_norm
        variance, smoothness = self.variance, self.smoothness
        if rate is None or squared_norm is None or variance is None or smoothness is None:
            return None
        curvature = smoothness * rate * rate / 2
        gains = reals(workers)
        fill_gains((rate - curvature) * squared_norm, curvature * variance, gains)
        return np.asarray(gains)


@compiled
def fill_gains(signal: float, noise: float, gains: Column) -> None:
    """Make gains of what all k have in common, and of what falls with k. They are not finite where these are not."""
    for i in range(len(gains)):
        gains[i] = signal - noise / (i + 1)


MAX_WINDOW = 1_000_000


class GainState(Struct, frozen=True):
    """All that a gain estimator has learnt. Lists of numbers are decoded one after the other, see `decode_reals`."""

    variances: Raw
    squared_norms: Raw
    smoothnesses: Raw
    last: Step | None
    learning_rate: Real | None


class GainEstimator:
    """Estimates what the gain depends on: averages of the last D estimates that iterations gave."""

    def __init__(self, window: int = 5) -> None:
        self._variances: deque[float] = deque(maxlen=window)
        self._squared_norms: deque[float] = deque(maxlen=window)
        self._smoothnesses: deque[float] = deque(maxlen=window)
        self._last: Step | None = None
        self._learning_rate: float | None = None
        self.skipped: Counter[Skipped] = Counter()  # iterations that did not contribute, by cause; not in snapshots

    @property
    def estimates(self) -> int:
        """How many estimates there are, in all averages."""
        return len(self._variances) + len(self._squared_norms) + len(self._smoothnesses)

    def observe(self, summary: IterationSummary) -> None:
        """Learn from an iteration. What it does not tell, or tells in numbers that make no sense, is left out."""
        step = self._step(summary)
        last = self._last
        if last is not None and last.iteration + 1 == step.iteration and step.loss is not None:
            estimate = smoothness(last, step.loss)
            if math.isfinite(estimate):
                self._smoothnesses.append(estimate)
            else:
                self.skipped[Skipped.SMOOTHNESS_UNKNOWN] += 1
        if step.variance is not None and step.squared_norm is not None:
            self._variances.append(step.variance)
            self._squared_norms.append(step.squared_norm)
        if step.learning_rate is not None:
            self._learning_rate = step.learning_rate
        self._last = step

    def _step(self, summary: IterationSummary) -> Step:
        loss, rate = summary.loss, summary.learning_rate
        if loss is not None and not math.isfinite(loss):
            self.skipped[Skipped.LOSS_NOT_FINITE] += 1
            loss = None
        if rate is not None and not (math.isfinite(rate) and rate >= 0):
            self.skipped[Skipped.LEARNING_RATE_IMPOSSIBLE] += 1
            rate = None
        squared_norm = variance = None
        if summary.moments is not None:
            found = gradient_variance(summary.k, summary.moments)
            if isinstance(found, Skipped):
                self.skipped[found] += 1
            else:
                variance = found
                squared_norm = squared_gradient_norm(summary.k, summary.moments.mean_squared_norm, variance)
        return Step(summary.iteration, summary.k, loss, rate, squared_norm, variance)

    def forget_from(self, iteration: int) -> None:
        """Make the next observation no successor of iterations from this one on. The averages stay."""
        if self._last is not None and self._last.iteration >= iteration:
            self._last = None

    def estimate(self) -> GainEstimate:
        """The averages at this time."""
        mean_smoothness = _mean(self._smoothnesses)
        return GainEstimate(
            squared_norm=_mean(self._squared_norms),
            variance=_mean(self._variances),
            smoothness=None if mean_smoothness is None else max(mean_smoothness, 0.0),
            learning_rate=self._learning_rate,
        )

    def snapshot(self) -> GainState:
        """All that was learnt."""
        return GainState(
            variances=Raw(encode(list(self._variances))),
            squared_norms=Raw(encode(list(self._squared_norms))),
            smoothnesses=Raw(encode(list(self._smoothnesses))),
            last=self._last,
            learning_rate=self._learning_rate,
        )

    def restore(self, state: GainState) -> None:
        """Replace all that was learnt by a state, as far as the window reaches."""
        window = self._variances.maxlen
        self._variances = deque(decode_reals(state.variances), window)
        self._squared_norms = deque(decode_reals(state.squared_norms), window)
        self._smoothnesses = deque(decode_reals(state.smoothnesses), window)
        self._last, self._learning_rate = state.last, state.learning_rate


def _mean(values: Collection[float]) -> float | None:
    mean = sum(values) / len(values) if values else math.nan
    return mean if math.isfinite(mean) else None
