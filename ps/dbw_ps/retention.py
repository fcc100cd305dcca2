"""Which checkpoints to keep. This is pure: times and losses are arguments."""

import math
from collections.abc import Collection, Sequence
from statistics import median
from typing import NamedTuple

HOUR_SECONDS = 3600.0
MIN_LOSSES = 10  # of fewer iterations, a low one may be luck


class Saved(NamedTuple):
    """A checkpoint that there is."""

    iteration: int
    seconds: float  # when it was written, by a clock that may jump
    loss: float | None  # that training had then; None if that is not known, or not finite


def loss_of(losses: Sequence[float]) -> float | None:
    """The loss that a training has, by that of its last iterations. A few that are wrong do not change it much."""
    loss = median(losses) if len(losses) >= MIN_LOSSES else math.nan
    return loss if math.isfinite(loss) else None


def kept(checkpoints: Collection[Saved], newest: int, hours: int) -> set[int]:
    """The iterations of the checkpoints to keep.

    These are the newest ones, the last one of each of the last hours that have any, and the one with the lowest loss.
    The newest are those of the latest iterations. Times only say which of them belong to the same hour of the clock,
    so that one that jumps can do no more harm than to make an hour longer or shorter.
    """
    by_age = sorted(checkpoints, key=lambda saved: saved.iteration, reverse=True)
    last_of_hour: dict[int, int] = {}
    for saved in by_age:
        last_of_hour.setdefault(int(saved.seconds // HOUR_SECONDS), saved.iteration)
    by_loss = [(saved.loss, saved.iteration) for saved in checkpoints if saved.loss is not None]
    return {
        *(saved.iteration for saved in by_age[:newest]),
        *list(last_of_hour.values())[:hours],
        *(iteration for _, iteration in sorted(by_loss)[:1]),
    }
