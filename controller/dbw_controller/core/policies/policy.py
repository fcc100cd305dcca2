"""What every policy is: an observation in, a choice with its reason out."""

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from msgspec import Raw, Struct, field

from dbw_controller.core.estimators.durations import DurationEstimator, Durations
from dbw_controller.core.estimators.gain import GainEstimate
from dbw_controller.core.kernels import Array
from dbw_controller.core.reasons import Input, Reason
from dbw_controller.core.reports import Arrivals, IterationSummary, Membership


class Memory:
    """What a policy learns by itself; this one learns nothing. A job tells it everything, in this order."""

    def arrived(self, arrivals: Sequence[Arrivals]) -> None:
        """Take note of arrivals. Some may be told twice."""

    def ended(self, summary: IterationSummary) -> None:
        """Take note of an iteration's end: what the next choice needs."""

    def catch_up(self, membership: Membership) -> None:
        """Do what the next choice but one needs, unless it is done. Nobody waits for a decision meanwhile."""

    def reset(self, new_training: bool) -> None:
        """All workers are idle, and iteration numbers may start again. With a new training, so does the loss."""

    def snapshot(self) -> object:
        """All that was learnt, as anything that msgspec encodes, such as a struct. It is encoded at once."""
        return {}

    def restore(self, data: Raw) -> None:
        """Replace all that was learnt by what a snapshot held, encoded: see `core.state.decode`."""


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
    memory: Memory = field(default_factory=Memory)  # the policy's own

    @property
    def durations(self) -> Durations:
        """How long iterations last, for each k from 1 to n. They are computed when a policy asks for them."""
        all_durations, n = self.duration_estimator.estimate(), self.workers
        if n == len(all_durations.seconds):
            return all_durations
        return Durations(*(column[:n].copy() for column in all_durations))  # a decision would keep all of a column


class Choice(Struct, frozen=True, eq=False):
    """The k that a policy chose, and why."""

    k: int
    reason: Reason
    explanation: str
    gains: Array | None = None  # what it took for the gain of each k from 1 to n
    durations: Durations | None = None  # what it took for the duration of each k from 1 to n
    deadline_seconds: float | None = None  # when to end the iteration with what has arrived, or
    deadlines: Array | None = None  # the same for each k from 1 to n, because the job's bounds may ask for another k

    def deadline(self, k: int) -> float | None:
        """When to end the iteration where the job's bounds have made it one of k gradients."""
        if self.deadlines is not None:
            seconds: float = self.deadlines.item(k - 1)
            return seconds if seconds > 0.0 else None
        return self.deadline_seconds if k <= self.k else None  # more gradients take longer


@runtime_checkable
class Policy(Protocol):
    """A rule that chooses k. Its parameters are the fields of a frozen dataclass, of type bool, int or float."""

    inputs: ClassVar[frozenset[Input]]  # what it uses, so that a job can say what is missing

    def choose(self, seen: Observation) -> Choice:
        """Choose k_t: at least 1 and at most n. The job's bounds come on top."""
        ...


@runtime_checkable
class LearningPolicy(Policy, Protocol):
    """A policy with estimators of its own."""

    def memory(self, interrupted: bool) -> Memory:
        """A new memory, for workers that are interrupted or for such that finish what they have begun."""
        ...
