"""How far a training has come, and what its checkpoints hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Any, NamedTuple, Self

import msgspec
import torch

from dbw_ps.decider import Source
from dbw_ps.losses import LOSSES, Losses, is_sensible
from dbw_ps.model import FlatModel
from dbw_ps.optimiser import Optimiser
from dbw_ps.options import PsOptions
from dbw_ps.outliers import NormState


@dataclass
class Progress:
    """How far a training has come, beside its model and optimiser."""

    iteration: int = 0  # the one under way
    seconds: float = 0.0  # that it has taken, over all runs
    losses: list[float] = field(default_factory=list)  # of the last iterations
    usual_norms: Mapping[str, Any] = field(default_factory=dict)  # of gradients, see `Outliers`
    told: Losses = field(default_factory=Losses)  # by each worker
    model_is_behind: bool = False  # an iteration has ended, and the model's update for it is not complete

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {
            "iteration": self.iteration,
            "seconds": self.seconds,
            "losses": self.losses,
            "usual_norms": self.usual_norms,
            "told_losses": list(self.told.recent),
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """Go on from a checkpoint; earlier versions wrote less."""
        told = Losses(state.get("told_losses", ()))
        losses = list(filter(is_sensible, state["losses"]))
        return cls(state["iteration"], state["seconds"], losses, state.get("usual_norms", {}), told)

    @property
    def loss(self) -> float | None:
        """The last loss."""
        return self.losses[-1] if self.losses else None

    def has_reached(self, goal: PsOptions) -> bool:
        """Whether training is over; never, if the options have no goal."""
        return (
            (goal.iterations is not None and self.iteration >= goal.iterations)
            or (goal.max_seconds is not None and self.seconds >= goal.max_seconds)
            or (goal.target_loss is not None and self._is_at_most(goal.target_loss))
        )

    def _is_at_most(self, target: float) -> bool:
        """Whether the mean loss of ten iterations is, and most workers say so."""
        return len(self.losses) == LOSSES and fmean(self.losses) <= target and self.told.level <= target

    def ended(self, losses: Mapping[int, float], seconds: float, usual_norms: Mapping[str, Any]) -> float | None:
        """An iteration has ended, whose workers told these losses; returns the mean of those that make sense."""
        plausible = self.told.add(losses)
        self.iteration, self.model_is_behind = self.iteration + 1, True
        self.seconds, self.usual_norms = seconds, usual_norms
        if not plausible:
            return None
        loss = fmean(plausible)
        self.losses = [*self.losses, loss][-LOSSES:]
        return loss


class Status(NamedTuple):
    """How a training goes, for whoever asks."""

    iteration: int  # the one under way
    seconds: float  # that training has taken
    loss: float | None
    live_workers: int
    stalled_workers: int
    missing_workers: int  # how many more are waited for, before the first iteration of this process
    k: int  # how many gradients the iteration waits for; 0 before the first
    source: Source | None  # of k; None as long as workers are waited for
    checkpoint_iteration: int | None  # of the newest checkpoint that this process wrote
    checkpoint_age: float | None  # in seconds
    replaced: bool  # whether another process has taken its job over


class _Plain(msgspec.Struct):
    """What a checkpoint holds beside tensors; earlier versions wrote less."""

    iteration: Annotated[int, msgspec.Meta(ge=0)]
    seconds: float
    losses: list[float]
    workers: dict[str, int]
    worker_identities: dict[str, str] = {}
    usual_norms: dict[str, NormState] = {}
    told_losses: list[dict[int, float]] = []
    job_state: bytes | None = None


@dataclass(frozen=True)
class TrainingState:
    """What a training changes."""

    model: FlatModel
    optimiser: Optimiser
    progress: Progress
    is_resumed: bool = False  # from a checkpoint of a training that had begun: the first one of all has no workers

    def capture(self, workers: dict[str, int], identities: dict[str, str]) -> dict[str, Any] | None:
        """All that a training needs to go on, in copies; None if nobody could go on from here.

        That is so if it has diverged, or if an update has failed half-way.
        """
        if self.progress.model_is_behind or not self.model.vector.isfinite().all():
            return None
        return {
            **self.progress.state(),
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "random_state": torch.get_rng_state(),
            "workers": workers,
            "worker_identities": identities,
        }

    @classmethod
    def begin(cls, model: FlatModel, optimiser: Optimiser, checkpoint: Mapping[str, Any]) -> Self:
        """Go on from a checkpoint, if it is not empty.

        Raises ValueError if it is of another model or optimiser, or is not a checkpoint of a training at all.
        """
        if not checkpoint:
            return cls(model, optimiser, Progress())
        msgspec.convert(dict(checkpoint), _Plain)
        try:
            model.load_state_dict(checkpoint["model"])
            optimiser.load_state_dict(checkpoint["optimiser"])
            torch.set_rng_state(checkpoint["random_state"])
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:  # PyTorch's, mostly
            raise ValueError(f"its tensors cannot be used ({type(error).__name__}: {error})") from error
        return cls(model, optimiser, Progress.of(checkpoint), is_resumed=bool(checkpoint["workers"]))
