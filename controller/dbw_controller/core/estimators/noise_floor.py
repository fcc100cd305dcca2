"""How far the loss is above the noise floor of SGD, and whether it still falls.

On a quadratic, SGD with k gradients does not get below ηV(g)/(4k), whatever the curvature is: there, noise undoes what
gradients gain. κ = ηV/(4F) is the number of gradients whose floor is at the loss. It needs neither L nor ‖∇F‖², which
are lost in noise late in training.

The least loss that can be reached is not known, and taken for 0. Where it is not, training stalls at a k that seems to
be large enough; a caution doubles then each time, until the loss falls again.
"""

import math
from typing import Annotated

from msgspec import Meta, Struct, field

from dbw_controller.core.estimators.gain import Skipped, gradient_variance
from dbw_controller.core.reports import IterationSummary
from dbw_controller.core.state import Count, Real, one_more

FADING, LOSS_FADING = 0.9, 0.97  # what a variance counts after the next one, and a loss after the next gradient
PROGRESS = 0.98  # the loss has improved when it is below so much of what it was
PATIENCE, RELATIVE_PATIENCE = 50, 0.2  # iterations without, at least and of all so far
CAUTION, RELIEF, MOST_CAUTIOUS = 2.0, 1.1, 16.0  # how it grows, falls again, and is bounded


class FadingMean(Struct):
    """A mean in which old values count less and less."""

    total: Real = 0.0
    weight: Real = 0.0

    def add(self, value: float, weight: float, fading: float) -> None:
        """Take in a value of some weight; what was there before fades. A value whose sum is not finite is left out."""
        total = fading * self.total + weight * value
        if math.isfinite(total):
            self.total, self.weight = total, fading * self.weight + weight

    @property
    def value(self) -> float | None:
        """The mean; None if there is none."""
        return self.total / self.weight if self.weight else None


class NoiseFloor(Struct):
    """Estimates κ, from what iterations report at their ends. Its fields are its state."""

    variance: FadingMean = field(default_factory=FadingMean)  # V̂(g)
    mean_loss: FadingMean = field(default_factory=FadingMean, name="loss")  # F̂
    rate: Real | None = None  # η
    least: Real | None = None  # the least F̂ so far
    improved: Real | None = None  # F̂ at the last improvement, and
    since: Count = 0  # iterations since then
    iterations: Count = 0
    caution: Annotated[float, Meta(ge=1.0, le=MOST_CAUTIOUS)] = 1.0
    without_variance: Count = 0  # iterations in a row that did not report it

    def observe(self, summary: IterationSummary) -> None:
        """Learn from an iteration. What it does not report, or reports in impossible numbers, is left out."""
        self.iterations = one_more(self.iterations)
        if summary.learning_rate is not None and 0 <= summary.learning_rate < math.inf:
            self.rate = summary.learning_rate
        self._observe_variance(summary)
        if summary.loss is not None and math.isfinite(summary.loss):
            self.mean_loss.add(summary.loss, summary.k, LOSS_FADING**summary.k)
            if (loss := self.mean_loss.value) is not None:
                self._judge(loss)

    def _observe_variance(self, summary: IterationSummary) -> None:
        moments = summary.moments
        variance = Skipped.SPREAD_MISSING if moments is None else gradient_variance(summary.k, moments)
        self.without_variance = one_more(self.without_variance)
        if moments is not None and not isinstance(variance, Skipped):
            within = moments.degrees_of_freedom if moments.within_worker_variance is not None else 0
            self.variance.add(variance, summary.k - 1 + within, FADING)
            self.without_variance = 0

    def _judge(self, loss: float) -> None:
        """Be more cautious where the loss has not improved for long, and less with every improvement."""
        self.least = loss if self.least is None else min(self.least, loss)
        self.since = one_more(self.since)
        if self.improved is None or loss < self.improved - (1 - PROGRESS) * abs(self.improved):
            self.improved, self.since = loss, 0
            self.caution = max(self.caution / RELIEF, 1.0)
        elif self.since > max(PATIENCE, RELATIVE_PATIENCE * self.iterations):
            self.since = 0
            self.caution = min(self.caution * CAUTION, MOST_CAUTIOUS)

    def estimate(self) -> float | None:
        """κ: the number of gradients whose noise floor is the loss; None if that is not known or not positive."""
        variance = self.variance.value
        if variance is None or self.rate is None or self.least is None or self.least <= 0:
            return None
        return self.rate * variance / (4 * self.least)
