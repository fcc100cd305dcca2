"""What a job answers: how many gradients to wait for, and why."""

from typing import Annotated

from msgspec import Meta, Struct

from dbw_controller.core.estimators.durations import Durations
from dbw_controller.core.estimators.gain import GainEstimate
from dbw_controller.core.kernels import Array
from dbw_controller.core.reasons import Input, Reason
from dbw_controller.core.state import Count, K, Name, Real, pack, unpack


class Estimates(Struct, frozen=True, eq=False):
    """What a decision was based on."""

    gain: GainEstimate
    gains: Array | None  # what the policy took for the gain, for each k from 1 to n
    durations: Durations | None  # what the policy took for the duration, for each k from 1 to n
    loss: float | None
    explanation: str  # why this k, in words


class Decision(Struct, frozen=True):
    """How many gradients to wait for in one iteration."""

    iteration: int
    k: int
    reason: Reason
    live_workers: int
    estimates: Estimates
    unbounded_k: int | None = None  # what the policy chose, where the job's bounds changed it
    deadline_seconds: float | None = None  # end the iteration then with what has arrived
    missing_inputs: frozenset[Input] = frozenset()

    def snapshot(self) -> "DecisionState":
        """The decision as a state."""
        why = self.estimates
        return DecisionState(
            iteration=self.iteration,
            k=self.k,
            reason=self.reason.name,
            live_workers=self.live_workers,
            unbounded_k=self.unbounded_k,
            deadline_seconds=self.deadline_seconds,
            missing_inputs=sorted(item.name for item in self.missing_inputs),
            gain=why.gain,
            gains=None if why.gains is None else pack(why.gains),
            durations=None if why.durations is None else [pack(column) for column in why.durations],
            loss=why.loss,
            explanation=why.explanation,
        )


class DecisionState(Struct, frozen=True):
    """A decision that can be asked for again."""

    iteration: Count
    k: K
    reason: Name
    live_workers: Count
    unbounded_k: K | None
    deadline_seconds: Real | None
    missing_inputs: Annotated[list[Name], Meta(max_length=len(Input))]
    gain: GainEstimate
    gains: bytes | None
    durations: Annotated[list[bytes], Meta(min_length=3, max_length=3)] | None
    loss: Real | None
    explanation: str

    def decision(self) -> Decision:
        """The decision that the snapshot was taken of."""
        durations = None if self.durations is None else Durations(*map(unpack, self.durations))
        gains = None if self.gains is None else unpack(self.gains)
        return Decision(
            iteration=self.iteration,
            k=self.k,
            reason=Reason[self.reason],
            live_workers=self.live_workers,
            unbounded_k=self.unbounded_k,
            deadline_seconds=self.deadline_seconds,
            missing_inputs=frozenset(Input[name] for name in self.missing_inputs),
            estimates=Estimates(self.gain, gains, durations, self.loss, self.explanation),
        )
