"""Where k comes from: a controller, or the same policies in this process."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, Unpack

from dbw.v1.iteration_pb2 import Decision, EndCause
from dbw.v1.job_pb2 import JobSpec as JobSpecMessage
from dbw_controller.client import Summary
from dbw_controller.client.settings import whole_state
from dbw_controller.core.spec import JobSpec, SyncMode
from dbw_controller.named_policies import policy_from
from dbw_controller.wire import messages
from dbw_ps.aggregate import Moments
from dbw_ps.rounds import Arrival, End


class Decider(Protocol):
    """A training job, wherever it is decided for."""

    @property
    def k(self) -> int:
        """How many gradients to wait for in this iteration."""
        ...

    @property
    def decision(self) -> Decision | None:
        """The decision for this iteration; None on fallback."""
        ...

    @property
    def on_fallback(self) -> bool:
        """Whether k is not the controller's decision."""
        ...

    def arrived(self, seconds: float, worker: int | None = None, iteration: int | None = None) -> None:
        """A gradient arrived, so many seconds after its parameters were published."""
        ...

    def set_workers(self, workers: int | Sequence[int]) -> None:
        """Workers came or went."""
        ...

    async def open(self) -> None:
        """Get the first decision."""
        ...

    async def end_iteration(self, **summary: Unpack[Summary]) -> int:
        """The iteration has ended; returns k of the next."""
        ...

    async def export_state(self) -> bytes | None:
        """All that was learnt, for a checkpoint; None if it cannot be had."""
        ...

    async def import_state(self, state: bytes) -> bool:
        """Replace what was learnt; returns whether that worked."""
        ...

    async def close(self, delete: bool = False) -> None:
        """Stop; the job is deleted where training is over."""
        ...


def spec_of(policy: str | None, sync_mode: SyncMode, sample_half_life: float | None = None) -> JobSpecMessage:
    """How k is to be chosen; without a policy, as the controller's default says."""
    spec = JobSpec(sync_mode=sync_mode, sample_half_life=sample_half_life)
    message = messages.spec_message(spec if policy is None else replace(spec, policy=policy_from(policy)))
    if policy is None:
        message.ClearField("policy")
    return message


def deadline_of(decision: Decision | None) -> float | None:
    """How long a decision lets an iteration last, in seconds."""
    if decision is None or not decision.HasField("deadline_seconds"):
        return None
    return decision.deadline_seconds


async def end_iteration(
    decider: Decider,
    end: End,
    moments: Moments,
    arrivals: Iterable[Arrival],
    published: float,
    rate: float,
    effective_rate: float | None,
) -> None:
    """Tell of an iteration that has ended, and get the next decision."""
    for arrival in arrivals:
        decider.arrived(arrival.seconds, arrival.worker, arrival.iteration)
    await decider.end_iteration(
        k=end.k,
        duration_seconds=end.seconds,
        end_cause=EndCause.Value(f"END_CAUSE_{end.cause.name}"),
        published_seconds=published,
        lost_gradients=end.lost,
        learning_rate=rate,
        effective_learning_rate=effective_rate,
        **moments._asdict(),
    )


def learnt_iterations(state: bytes) -> int:
    """From how many iterations a job has learnt what it exported."""
    return whole_state(state).header.learnt_iterations
