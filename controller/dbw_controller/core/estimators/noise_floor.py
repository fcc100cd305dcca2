"""How far the loss is above the noise floor of SGD, and whether it still falls.

On a quadratic, SGD with k gradients does not get below ηV(g)/(4k), whatever the curvature is: there, noise undoes what
gradients gain. κ = ηV/(4F) is the number of gradients whose floor is at the loss. It needs neither L nor ‖∇F‖², which
are lost in noise late in training.

The least loss that can be reached is not known, and taken for 0. Where it is not, training stalls at a k that seems to
be large enough; a caution doubles then each time, until the loss falls again.
"""

import math
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from dbw_controller.core import plain
from dbw_controller.core.estimators.gain import Skipped, gradient_variance
from dbw_controller.core.reports import IterationSummary

FADING, LOSS_FADING = 0.9, 0.97  # what a variance counts after the next one, and a loss after the next gradient
PROGRESS = 0.98  # the loss has improved when it is below so much of what it was
PATIENCE, RELATIVE_PATIENCE = 50, 0.2  # iterations without, at least and of all so far
CAUTION, RELIEF, MOST_CAUTIOUS = 2.0, 1.1, 16.0  # how it grows, falls again, and is bounded


class FadingMean(Struct):
    """A mean in which old values count less and less."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float, fading: float) -> None:
        """Take in a value of some weight; what was there before fades. A value whose sum is not finite is left out."""
        total = fading * self.total + weight * value
        if math.isfinite(total):
            self.total, self.weight = total, fading * self.weight + weight

    @property
    def value(self) -> float | None:
        """The mean; None if there is none."""
        return self.total / self.weight if self.weight else None


class NoiseFloor:
    """Estimates κ, from what iterations tell at their ends."""

    def __init__(self) -> None:
        self._variance = FadingMean()  # V̂(g)
        self._loss = FadingMean()  # F̂
        self._rate: float | None = None  # η
        self._least = math.inf  # of F̂
        self._improved = math.inf  # F̂ when it had improved last, and
        self._since = 0  # iterations since then
        self._iterations = 0
        self.caution = 1.0
        self.without_variance = 0  # iterations in a row that did not tell it

    def observe(self, summary: IterationSummary) -> None:
        """Learn from an iteration. What it does not tell, or tells in numbers that make no sense, is left out."""
        self._iterations += 1
        if summary.learning_rate is not None and 0 <= summary.learning_rate < math.inf:
            self._rate = summary.learning_rate
        self._observe_variance(summary)
        if summary.loss is not None and math.isfinite(summary.loss):
            self._loss.add(summary.loss, summary.k, LOSS_FADING**summary.k)
            if (loss := self._loss.value) is not None:
                self._judge(loss)

    def _observe_variance(self, summary: IterationSummary) -> None:
        moments = summary.moments
        variance = Skipped.SPREAD_MISSING if moments is None else gradient_variance(summary.k, moments)
        self.without_variance += 1
        if moments is not None and not isinstance(variance, Skipped):
            within = moments.degrees_of_freedom if moments.within_worker_variance is not None else 0
            self._variance.add(variance, summary.k - 1 + within, FADING)
            self.without_variance = 0

    def _judge(self, loss: float) -> None:
        """Be more cautious where the loss has not improved for long, and less with every improvement."""
        self._least = min(self._least, loss)
        self._since += 1
        if loss < self._improved - (1 - PROGRESS) * abs(self._improved) or self._improved == math.inf:
            self._improved, self._since = loss, 0
            self.caution = max(self.caution / RELIEF, 1.0)
        elif self._since > max(PATIENCE, RELATIVE_PATIENCE * self._iterations):
            self._since = 0
            self.caution = min(self.caution * CAUTION, MOST_CAUTIOUS)

    @property
    def loss(self) -> float | None:
        """F̂, over the last iterations."""
        return self._loss.value

    def estimate(self) -> float | None:
        """κ: the number of gradients whose noise floor is the loss; None if that is not known or not positive."""
        variance = self._variance.value
        if variance is None or self._rate is None or not 0 < self._least < math.inf:
            return None
        return self._rate * variance / (4 * self._least)

    def snapshot(self) -> dict[str, Any]:
        """All that was learnt, as plain data."""
        return {
            "variance": asdict(self._variance),
            "loss": asdict(self._loss),
            "rate": self._rate,
            "least": plain.or_none(self._least),
            "improved": plain.or_none(self._improved),
            "since": self._since,
            "iterations": self._iterations,
            "caution": self.caution,
            "without_variance": self.without_variance,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace all that was learnt by what a snapshot holds."""
        self._variance = FadingMean(*(plain.real(state["variance"][name]) for name in ("total", "weight")))
        self._loss = FadingMean(*(plain.real(state["loss"][name]) for name in ("total", "weight")))
        self._rate = plain.optional(plain.real, state["rate"])
        self._least = plain.or_infinite(state["least"])
        self._improved = plain.or_infinite(state["improved"])
        self._since = plain.integer(state["since"])
        self._iterations = plain.integer(state["iterations"])
        self.caution = plain.real(state["caution"])
        self.without_variance = plain.integer(state["without_variance"])
