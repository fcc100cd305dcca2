"""What chooses k for a parameter server: a controller, or the same policies in this process."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from dbw_ps.aggregate import Moments
from dbw_ps.rounds import Arrival, End


class Source(Enum):
    """Where the k in use comes from; the names are those of the contract."""

    CONTROLLER = "a controller decided it"
    EMBEDDED = "this process decided it"
    FALLBACK = "a controller should decide it, but has not decided yet, or is gone"


class JobTakenOverError(Exception):
    """Another process has taken the job over, and this one is to end then."""

    def __init__(self, job: str) -> None:
        advice = "if both are to train, give one of them another --job"
        super().__init__(f"another process has taken the job {job} over, and --on-replaced is exit; {advice}")


@dataclass(frozen=True)
class FinishedIteration:
    """All that is known of an iteration at its end."""

    end: End
    moments: Moments
    arrivals: Sequence[Arrival]  # since the iteration before ended, late ones of earlier iterations too
    published: float  # when its parameters were published, in seconds on the parameter server's clock
    learning_rate: float
    effective_learning_rate: float | None  # of the plain SGD that moves as far, where that is known


class Decider(Protocol):
    """Chooses k for one training job."""

    @property
    def k(self) -> int:
        """How many gradients to wait for in this iteration."""

    @property
    def deadline_seconds(self) -> float | None:
        """How long this iteration may last, where that was decided."""

    @property
    def source(self) -> Source:
        """Where this iteration's k comes from."""

    @property
    def replaced(self) -> bool:
        """Whether another process has taken the job over."""

    def set_workers(self, workers: Sequence[int]) -> None:
        """Take note of who is alive."""

    async def open(self) -> None:
        """Get the first decision."""

    async def end_iteration(self, finished: FinishedIteration) -> None:
        """Report an iteration, and get the decision for the next."""

    async def export_state(self) -> bytes | None:
        """All that was learnt, for a checkpoint; None if it is not available."""

    async def import_state(self, state: bytes) -> bool:
        """Replace what was learnt by a state of more iterations, which may change k; returns whether that worked."""

    async def close(self, delete: bool = False) -> None:
        """Stop; `delete` the job where training is over."""
