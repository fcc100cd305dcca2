"""How far a training has come, and what its checkpoints hold."""

from dataclasses import dataclass, field
from typing import Any, Self

import torch

from dbw_ps.model import FlatModel
from dbw_ps.optimiser import Optimiser

# A single iteration's loss is noisy: a target is reached when the mean of so many is there.
LOSSES = 10


@dataclass(frozen=True)
class Goal:
    """When a training is over; without any of these, never."""

    iterations: int | None = None
    target_loss: float | None = None
    max_seconds: float | None = None

    def is_reached(self, progress: "Progress") -> bool:
        """Whether a training has come so far."""
        losses = progress.losses
        return (
            (self.iterations is not None and progress.iteration >= self.iterations)
            or (self.max_seconds is not None and progress.seconds >= self.max_seconds)
            or (self.target_loss is not None and len(losses) == LOSSES and sum(losses) / LOSSES <= self.target_loss)
        )


@dataclass
class Progress:
    """How far a training has come, beside its model and optimiser."""

    iteration: int = 0  # the one under way
    seconds: float = 0.0  # that it has taken, over all runs
    losses: list[float] = field(default_factory=list)  # of the last iterations
    job_state: bytes | None = None  # what the job has learnt, as of the last checkpoint

    @property
    def loss(self) -> float | None:
        """The last loss."""
        return self.losses[-1] if self.losses else None

    def ended(self, loss: float | None, seconds: float) -> None:
        """An iteration has ended."""
        self.iteration += 1
        self.seconds = seconds
        if loss is not None:
            self.losses = [*self.losses, loss][-LOSSES:]

    def checkpoint(self, model: FlatModel, optimiser: Optimiser, workers: dict[str, int]) -> dict[str, Any]:
        """All that a training needs to go on, in copies."""
        return {
            "iteration": self.iteration,
            "seconds": self.seconds,
            "losses": list(self.losses),
            "job_state": self.job_state,
            "model": model.state_dict(),
            "optimiser": optimiser.state_dict(),
            "random_state": torch.get_rng_state(),
            "workers": workers,
        }

    @classmethod
    def resume(cls, state: dict[str, Any], model: FlatModel, optimiser: Optimiser) -> Self:
        """Go on from a checkpoint. Raises ValueError if it is of another model or optimiser."""
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random_state"])
        return cls(state["iteration"], state["seconds"], state["losses"], state["job_state"])
