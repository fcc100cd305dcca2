"""What is kept of a job: all of it in a snapshot, and what it has learnt in an export."""

from typing import Annotated

from msgspec import Meta, Raw, Struct

from dbw_controller.core.arrival_log import ArrivalLogState
from dbw_controller.core.decision import DecisionState
from dbw_controller.core.errors import StateFormatUnknownError
from dbw_controller.core.estimators.durations import DurationsState
from dbw_controller.core.estimators.gain import GainState
from dbw_controller.core.reasons import Input
from dbw_controller.core.reports import MAX_ITERATION, MAX_WORKERS
from dbw_controller.core.spec import SpecState
from dbw_controller.core.state import Count, K, Name, Real, T, decode, encode

# The format of snapshots and of what was learnt. A job reads all formats up to its own.
STATE_VERSION = 1
# Decisions that can be asked for again.
REMEMBERED_DECISIONS = 64
NO_MEMORY = Raw(encode({}))


class PastIteration(Struct, frozen=True, array_like=True):
    """An iteration that has ended."""

    iteration: Count
    k: K
    loss: Real | None  # None if it was not reported, or not finite


class LearntState(Struct, frozen=True):
    """What a job has learnt, for another job to adopt, or the same one after a loss."""

    version: int
    learnt_iterations: Annotated[int, Meta(ge=0, le=MAX_ITERATION)]  # which leaves room to learn more
    workers: K | None  # how many were alive at the last sample
    first_loss: Real | None
    loss: Real | None
    gain: GainState
    durations: DurationsState
    policy: Name = ""  # the name of the class whose memory follows
    memory: Raw = NO_MEMORY


class JobState(Struct, frozen=True):
    """A whole job."""

    version: int
    spec: SpecState
    membership: tuple[
        Annotated[int, Meta(ge=0, le=MAX_WORKERS)],
        Annotated[list[Annotated[int, Meta(ge=0, lt=2**32)]], Meta(max_length=MAX_WORKERS)] | None,
    ]
    iteration: Count
    idle_at: Count | None
    time_offset: Count
    log: ArrivalLogState
    ended: tuple[PastIteration | None, PastIteration | None]  # the one before the last, and the last
    missing: Annotated[list[Name], Meta(max_length=len(Input))]
    decisions: Annotated[list[DecisionState], Meta(min_length=1, max_length=REMEMBERED_DECISIONS)]
    learnt: LearntState


class _Version(Struct):
    version: object


def read_state(data: bytes, kind: type[T]) -> T:
    """The state that bytes hold; refuses a newer format, which may have other fields."""
    version = decode(data, _Version).version
    if not isinstance(version, int) or not 1 <= version <= STATE_VERSION:
        raise StateFormatUnknownError(version, STATE_VERSION)
    return decode(data, kind)
