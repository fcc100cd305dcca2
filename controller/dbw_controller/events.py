"""What a parameter server reports. Times are seconds since the iteration's parameters were published."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from dbw_controller.errors import InvalidValueError
from dbw_controller.estimators.compiled import COMPILED, Array

# The duration estimate needs room for n² pairs of numbers, and without numba a multiple of that.
MAX_WORKERS = 10_000 if COMPILED else 1_000
# Iterations are counted in 64 bits, and never get there.
MAX_ITERATION = 2**63
# Thirty thousand years: times are in another unit, and their sums of squares would overflow.
MAX_SECONDS = 1e12


def require(condition: bool, field: str, value: object, rule: str) -> None:
    """Refuse a value that is not allowed."""
    if not condition:
        raise InvalidValueError(field, value, rule)


def require_iteration(field: str, value: int) -> None:
    """Refuse what is no number of an iteration."""
    require(0 <= value < MAX_ITERATION, field, value, f"at least 0 and less than {MAX_ITERATION}")


@dataclass(frozen=True, eq=False)
class Arrivals:
    """When gradients of one iteration's parameters arrived, in order of arrival; `preceding` had arrived before."""

    iteration: int
    seconds: Array
    preceding: int = 0
    workers: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        require_iteration("arrivals.iteration", self.iteration)
        require(self.preceding >= 0, "arrivals.preceding", self.preceding, "at least 0")
        seconds = np.array(self.seconds, float)  # a copy: the caller's may change, and these may have to wait
        require(seconds.ndim == 1, "arrivals.seconds", self.seconds, "a list of numbers")
        fine = (seconds >= 0) & (seconds <= MAX_SECONDS)
        if not fine.all():
            raise InvalidValueError("arrivals.seconds", float(seconds[~fine][0]), f"between 0 and {MAX_SECONDS:g}")
        object.__setattr__(self, "seconds", seconds)
        if self.workers is not None:
            workers = np.asarray(self.workers, np.int64)
            rule = f"as many as seconds, {seconds.size}"
            require(workers.shape == seconds.shape, "arrivals.workers", workers.size, rule)
            object.__setattr__(self, "workers", workers)


@dataclass(frozen=True)
class Membership:
    """The workers that are alive, and their numbers where the parameter server can tell them apart."""

    live_workers: int
    workers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        rule = f"between 0 and {MAX_WORKERS}"
        require(0 <= self.live_workers <= MAX_WORKERS, "membership.live_workers", self.live_workers, rule)
        if self.workers is not None:
            numbers = tuple(self.workers)
            require(
                len(set(numbers)) == len(numbers) == self.live_workers,
                "membership.workers",
                len(set(numbers)),
                f"as many different numbers as live_workers, {self.live_workers}",
            )
            object.__setattr__(self, "workers", numbers)


@dataclass(frozen=True)
class GradientMoments:
    """Moments of the k averaged gradients g_1 … g_k with mean ḡ. Any of them may be a number that makes no sense."""

    mean_squared_norm: float  # ‖ḡ‖²
    sum_squared_norms: float | None = None  # Σ‖g_j‖²
    variance: float | None = None  # Σ‖g_j − ḡ‖²/(k−1), where the sum above is not known
    within_worker_variance: float | None = None  # the same variance, as seen inside the workers' mini-batches
    degrees_of_freedom: int = 0  # how much that is worth


class EndCause(Enum):
    """Why a parameter server stopped waiting for gradients."""

    K_REACHED = "k reached"
    NO_MORE_EXPECTED = "no more expected"
    DEADLINE = "deadline"
    MAX_WAIT = "max wait"


@dataclass(frozen=True)
class IterationSummary:
    """One iteration, at its end."""

    iteration: int
    k: int  # gradients that were averaged
    duration_seconds: float
    loss: float | None = None  # F̂: mean over the averaged workers' mini-batches
    learning_rate: float | None = None  # η, of the plain SGD that moves as far
    moments: GradientMoments | None = None
    previous_k: int | None = None  # k of the iteration before, where its summary may be lost
    end_cause: EndCause = EndCause.K_REACHED
    fallback: bool = False  # whether k was the parameter server's own choice
    published_seconds: float | None = None  # on the parameter server's clock
    lost_gradients: int = 0

    def __post_init__(self) -> None:
        require_iteration("summary.iteration", self.iteration)
        require(1 <= self.k <= MAX_WORKERS, "summary.k", self.k, f"between 1 and {MAX_WORKERS}")
        duration = self.duration_seconds
        require(0 <= duration <= MAX_SECONDS, "summary.duration_seconds", duration, f"between 0 and {MAX_SECONDS:g}")
        if self.previous_k is not None:
            rule = f"between 1 and {MAX_WORKERS}"
            require(1 <= self.previous_k <= MAX_WORKERS, "summary.previous_k", self.previous_k, rule)
        require(self.lost_gradients >= 0, "summary.lost_gradients", self.lost_gradients, "at least 0")


@dataclass(frozen=True)
class Report:
    """What has happened since the last report, applied in the order of the fields."""

    arrivals: Sequence[Arrivals] = ()
    summary: IterationSummary | None = None
    membership: Membership | None = None
