"""What a job answers: how many gradients to wait for, and why."""

from typing import Any, Self

from msgspec import Struct
from msgspec.structs import astuple

from dbw_controller.core import plain
from dbw_controller.core.estimators.durations import Durations
from dbw_controller.core.estimators.gain import GainEstimate
from dbw_controller.core.kernels import Array
from dbw_controller.core.reasons import Input, Reason


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

    def as_plain(self) -> dict[str, Any]:
        """The decision as plain data."""
        why = self.estimates
        return {
            "iteration": self.iteration,
            "k": self.k,
            "reason": self.reason.name,
            "live_workers": self.live_workers,
            "unbounded_k": self.unbounded_k,
            "deadline_seconds": self.deadline_seconds,
            "missing_inputs": sorted(item.name for item in self.missing_inputs),
            "gain": list(astuple(why.gain)),
            "gains": None if why.gains is None else plain.packed(why.gains),
            "durations": None if why.durations is None else [plain.packed(column) for column in why.durations],
            "loss": why.loss,
            "explanation": why.explanation,
        }

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Self:
        """The decision that plain data describe."""
        gains, durations = data["gains"], data["durations"]
        return cls(
            iteration=plain.integer(data["iteration"]),
            k=plain.integer(data["k"], 1),
            reason=Reason[data["reason"]],
            live_workers=plain.integer(data["live_workers"]),
            unbounded_k=plain.optional(plain.integer, data["unbounded_k"]),
            deadline_seconds=plain.optional(plain.real, data["deadline_seconds"]),
            missing_inputs=frozenset(Input[name] for name in data["missing_inputs"]),
            estimates=Estimates(
                gain=GainEstimate(*(plain.optional(plain.real, part) for part in data["gain"])),
                gains=plain.optional(plain.unpacked, gains),
                durations=None if durations is None else Durations(*map(plain.unpacked, durations)),
                loss=plain.optional(plain.real, data["loss"]),
                explanation=str(data["explanation"]),
            ),
        )
