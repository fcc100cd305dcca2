"""How far the loss has come, when what one of several workers says of its own may be wrong."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median_high, median_low

LARGEST_LOSS = 1e30  # either way: what is larger is nonsense, and sums of it may overflow
LOSSES = 10  # a single iteration's loss is noisy: this many are looked at
MIN_WORKERS = 3  # of this many one may be wrong, and most are right
MAX_ITERATIONS = 100  # to look at until this many have said something: who is silent in all of them is not asked
MAX_RATIO = 1000.0  # a loss that is this many times as large as losses usually are is not averaged


class Losses:
    """What workers, by their numbers, said in the last iterations: in `LOSSES`, or until `MIN_WORKERS` have said it."""

    def __init__(self, recent: Sequence[Mapping[int, float]] = ()) -> None:
        self.recent = [sensible for losses in recent if (sensible := _sensible(losses))]

    def add(self, losses: Mapping[int, float]) -> list[float]:
        """Take note of what workers say in an iteration; returns the losses that can be averaged."""
        losses = _sensible(losses)
        if not losses:
            return []
        self.recent.append(losses)
        while len(self.recent) > LOSSES and (
            len(self.recent) > MAX_ITERATIONS or len(_workers(self.recent[1:])) >= MIN_WORKERS
        ):
            self.recent.pop(0)
        usual = median_low(_mean(map(abs, told)) for told in self._by_worker())
        limit = MAX_RATIO * usual or math.inf
        return [loss for loss in losses.values() if abs(loss) <= limit]

    @property
    def level(self) -> float:
        """What most workers say: the median of their means. Of two, the one that says more is believed."""
        return median_high(map(_mean, self._by_worker())) if self.recent else math.inf

    def _by_worker(self) -> list[list[float]]:
        """The last losses of each worker, of iterations that are as recent as possible."""
        first, workers = max(len(self.recent) - LOSSES, 0), min(len(_workers(self.recent)), MIN_WORKERS)
        while len(_workers(self.recent[first:])) < workers:
            first -= 1
        told: dict[int, list[float]] = {}
        for losses in self.recent[first:]:
            for worker, loss in losses.items():
                told.setdefault(worker, []).append(loss)
        return [losses[-LOSSES:] for losses in told.values()]


def is_sensible(loss: float) -> bool:
    """Whether a loss can be one at all: it is finite, and not absurd."""
    return abs(loss) <= LARGEST_LOSS


def _sensible(losses: Mapping[int, float]) -> dict[int, float]:
    return {worker: loss for worker, loss in losses.items() if is_sensible(loss)}


def _workers(iterations: Sequence[Mapping[int, float]]) -> set[int]:
    return set().union(*iterations)


def _mean(losses: Iterable[float]) -> float:
    """The mean without the lowest and the highest: a worker that is wrong once then says nothing."""
    ordered = sorted(losses)
    return fmean(ordered[1:-1] or ordered)
