"""How far a training has come, and what its checkpoints hold."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import torch

from dbw_ps.decider import Source
from dbw_ps.model import FlatModel
from dbw_ps.optimiser import Optimiser
from dbw_ps.options import PsOptions

# A single iteration's loss is noisy: a target is reached when the mean of this many is.
LOSSES = 10


@dataclass
class Progress:
    """How far a training has come, beside its model and optimiser."""

    iteration: int = 0  # the one under way
    seconds: float = 0.0  # that it has taken, over all runs
    losses: list[float] = field(default_factory=list)  # of the last iterations

    @property
    def loss(self) -> float | None:
        """The last loss."""
        return self.losses[-1] if self.losses else None

    def has_reached(self, goal: PsOptions) -> bool:
        """Whether training is over; never, if the options have no goal."""
        is_full, mean = len(self.losses) == LOSSES, sum(self.losses) / LOSSES
        return (
            (goal.iterations is not None and self.iteration >= goal.iterations)
            or (goal.max_seconds is not None and self.seconds >= goal.max_seconds)
            or (goal.target_loss is not None and is_full and mean <= goal.target_loss)
        )

    def ended(self, loss: float | None, seconds: float) -> None:
        """An iteration has ended."""
        self.iteration += 1
        self.seconds = seconds
        if loss is not None:
            self.losses = [*self.losses, loss][-LOSSES:]


class Status(NamedTuple):
    """How a training goes, for whoever asks."""

    iteration: int  # the one under way
    seconds: float  # that training has taken
    loss: float | None
    live_workers: int
    k: int  # how many gradients the iteration waits for; 0 before the first
    source: Source | None  # of k; None as long as workers are waited for
    checkpoint_iteration: int | None  # of the newest checkpoint that this process wrote
    checkpoint_age: float | None  # in seconds


@dataclass(frozen=True)
class TrainingState:
    """What a training changes."""

    model: FlatModel
    optimiser: Optimiser
    progress: Progress

    def capture(self, workers: dict[str, int]) -> dict[str, Any] | None:
        """All that a training needs to go on, in copies; None if it has diverged, and nobody could go on from here."""
        if not self.model.vector.isfinite().all():
            return None
        return {
            **asdict(self.progress),
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "random_state": torch.get_rng_state(),
            "workers": workers,
        }

    @classmethod
    def begin(cls, model: FlatModel, optimiser: Optimiser, checkpoint: Mapping[str, Any]) -> Self:
        """Go on from a checkpoint, if it is not empty. Raises ValueError if it is of another model or optimiser."""
        if not checkpoint:
            return cls(model, optimiser, Progress())
        model.load_state_dict(checkpoint["model"])
        optimiser.load_state_dict(checkpoint["optimiser"])
        torch.set_rng_state(checkpoint["random_state"])
        progress = Progress(checkpoint["iteration"], checkpoint["seconds"], checkpoint["losses"])
        return cls(model, optimiser, progress)
