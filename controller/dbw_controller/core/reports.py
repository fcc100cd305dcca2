"""What a parameter server reports. Times are seconds since the iteration's parameters were published."""

import math
import operator
from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import force_setattr

from dbw_controller.core.errors import InvalidValueError
from dbw_controller.core.kernels import COMPILED, Array, Column, column, compiled
from dbw_controller.core.validation import Kind, convert, require

# The duration estimate needs 64 bytes for each pair (h, i) that may be sampled, and without numba a multiple of that.
MAX_WORKERS = 10_000 if COMPILED else 1_000
# Iterations are counted in 64 bits, and never get there.
MAX_ITERATION = 2**62
# Thirty thousand years: a longer time is in another unit, and sums of times and weights must not overflow.
MAX_SECONDS = 1e12

_ITERATION = (int, 0, MAX_ITERATION)
_WORKERS = (int, 0, MAX_WORKERS)
_GRADIENTS = (int, 1, MAX_WORKERS)
_COUNT = (int, 0, 2**32)
_SECONDS = (float, 0.0, MAX_SECONDS)
_REAL = (float, -math.inf, math.inf)


@compiled
def first_wrong(seconds: Column) -> int:
    """The index of the first time that is not allowed, NaN for example; −1 if all are."""
    for i in range(len(seconds)):
        if not 0.0 <= seconds[i] <= MAX_SECONDS:
            return i
    return -1


def _copied(seconds: Sequence[float] | Array) -> Array:
    """The same times in an array of their own: the caller's may change, and these may have to wait."""
    try:
        if len(seconds) < 64:  # so few are faster one by one than NumPy finds out what holds them
            return np.fromiter(seconds, float, len(seconds))
        array = np.array(seconds, float)
    except (TypeError, ValueError):
        raise InvalidValueError("arrivals.seconds", seconds, "a list of numbers") from None
    require(array.ndim == 1, "arrivals.seconds", seconds, "a list of numbers")
    return array


class Arrivals(Struct, frozen=True, eq=False):
    """When gradients of one iteration's parameters arrived, in order of arrival; `preceding` had arrived before."""

    iteration: int
    seconds: Array  # or any sequence of numbers, which becomes one
    preceding: int = 0
    workers: Sequence[int] | npt.NDArray[np.int64] | None = None

    _kinds: ClassVar[dict[str, Kind]] = {"iteration": _ITERATION, "preceding": _COUNT}

    def __post_init__(self) -> None:
        convert(self, "arrivals", self._kinds)
        seconds = _copied(self.seconds)
        wrong = first_wrong(column(seconds))
        if wrong >= 0:
            raise InvalidValueError("arrivals.seconds", float(seconds[wrong]), f"between 0 and {MAX_SECONDS:g}")
        force_setattr(self, "seconds", seconds)
        if self.workers is not None and len(self.workers) != len(seconds):
            raise InvalidValueError("arrivals.workers", len(self.workers), f"as many as seconds, {len(seconds)}")


class Membership(Struct, frozen=True):
    """The workers that are alive, and their numbers where the parameter server can tell them apart."""

    live_workers: int
    workers: Sequence[int] | None = None

    _kinds: ClassVar[dict[str, Kind]] = {"live_workers": _WORKERS}

    def __post_init__(self) -> None:
        convert(self, "membership", self._kinds)
        if self.workers is not None:
            numbers = tuple(map(operator.index, self.workers))
            require(
                len(set(numbers)) == len(numbers) == self.live_workers,
                "membership.workers",
                len(set(numbers)),
                f"as many different numbers as live_workers, {self.live_workers}",
            )
            force_setattr(self, "workers", numbers)


class GradientMoments(Struct, frozen=True):
    """Moments of the k averaged gradients g_1 … g_k with mean ḡ. Any of them may be a number that makes no sense."""

    mean_squared_norm: float  # ‖ḡ‖²
    sum_squared_norms: float | None = None  # Σ‖g_j‖²
    variance: float | None = None  # Σ‖g_j − ḡ‖²/(k−1), where the sum above is not known
    within_worker_variance: float | None = None  # the same variance, as seen inside the workers' mini-batches
    degrees_of_freedom: int = 0  # how much that is worth

    _reals: ClassVar = ("mean_squared_norm", "sum_squared_norms", "variance", "within_worker_variance")
    _kinds: ClassVar[dict[str, Kind]] = {**dict.fromkeys(_reals, _REAL), "degrees_of_freedom": _COUNT}

    def __post_init__(self) -> None:
        convert(self, "summary.moments", self._kinds)


class EndCause(Enum):
    """Why a parameter server stopped waiting for gradients."""

    K_REACHED = "k reached"
    NO_MORE_EXPECTED = "no more expected"
    DEADLINE = "deadline"
    MAX_WAIT = "max wait"


class IterationSummary(Struct, frozen=True):
    """One iteration, at its end. What estimators do not use is for those who watch a job."""

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
    decision_iteration: int | None = None  # which the decision in use was for, if not this one

    _kinds: ClassVar[dict[str, Kind]] = {
        "iteration": _ITERATION,
        "k": _GRADIENTS,
        "duration_seconds": _SECONDS,
        "loss": _REAL,
        "learning_rate": _REAL,
        "previous_k": _GRADIENTS,
        "published_seconds": _REAL,
        "lost_gradients": _WORKERS,
        "decision_iteration": _ITERATION,
    }

    def __post_init__(self) -> None:
        convert(self, "summary", self._kinds)


class Report(Struct, frozen=True):
    """What has happened since the last report: arrivals first, then the summary, then the membership."""

    arrivals: Sequence[Arrivals] = ()
    summary: IterationSummary | None = None
    membership: Membership | None = None
