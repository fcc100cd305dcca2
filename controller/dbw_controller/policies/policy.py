"""What every policy is: an observation in, a choice with its reason out."""

from typing import ClassVar, Protocol, runtime_checkable

from msgspec import Struct

from dbw_controller.decision import Input, Reason
from dbw_controller.estimators.compiled import Array
from dbw_controller.estimators.durations import DurationEstimator, Durations
from dbw_controller.estimators.gain import GainEstimate


class Observation(Struct, frozen=True):
    """All that a policy can know when it chooses k_t."""

    iteration: int  # t
    workers: int  # n, the workers that are alive, at least 1
    learnt_iterations: int  # iterations that have been observed
    previous_k: int | None  # k_{t−1}; None if it is not known
    loss: float | None  # the last loss that was reported
    loss_before: float | None  # the one of the iteration before; None unless these were iterations t−1 and t−2
    first_loss: float | None  # the first loss that was reported
    gain: GainEstimate
    duration_estimator: DurationEstimator

    @property
    def durations(self) -> Durations:
        """How long iterations last, for each k from 1 to n. They are computed when a policy asks for them."""
        all_durations, n = self.duration_estimator.estimate(), self.workers
        if n == len(all_durations.seconds):
            return all_durations
        return Durations(all_durations.seconds[:n], all_durations.shortest[:n], all_durations.longest[:n])


class Choice(Struct, frozen=True, eq=False):
    """The k that a policy chose, and why."""

    k: int
    reason: Reason
    explanation: str
    gains: Array | None = None  # what it took for the gain of each k from 1 to n
    durations: Durations | None = None  # what it took for the duration of each k from 1 to n
    deadline_seconds: float | None = None


@runtime_checkable
class Policy(Protocol):
    """A rule that chooses k. Its parameters are the fields of a frozen dataclass, of type bool, int or float."""

    inputs: ClassVar[frozenset[Input]]  # what it uses, so that a job can say what is missing

    def choose(self, seen: Observation) -> Choice:
        """Choose k_t: at least 1 and at most n. The job's bounds come on top."""
        ...
