"""What a job is created with: how k is to be chosen for it."""

from dataclasses import dataclass, field
from enum import Enum

from msgspec import Struct
from msgspec.structs import asdict

from dbw_controller.core.errors import NotSupportedError
from dbw_controller.core.estimators.durations import UnsampledDuration
from dbw_controller.core.estimators.gain import MAX_WINDOW
from dbw_controller.core.policies import DEFAULT, POLICIES, Policy, create_policy, policy_name, policy_parameters
from dbw_controller.core.state import Count, Name, Real
from dbw_controller.core.validation import require


class SyncMode(Enum):
    """How a parameter server and its workers exchange parameters (paper, Section 2)."""

    PUSH_WAIT = "push-wait"
    PUSH_INTERRUPT = "push-interrupt"
    PULL = "pull"


@dataclass(frozen=True)
class JobSpec:
    """How k is chosen: it does not change during a job's life."""

    policy: Policy = field(default_factory=lambda: create_policy(DEFAULT))
    k_min: int = 1
    k_max: int | None = None  # None: all workers that are alive
    averaging_window: int = 5  # D: how many past estimates the gain's averages are over
    sample_half_life: float | None = None  # in iterations, of duration samples; None: they count for ever
    unsampled_duration: UnsampledDuration = UnsampledDuration.MIDPOINT
    sync_mode: SyncMode = SyncMode.PUSH_WAIT

    def __post_init__(self) -> None:
        is_policy = isinstance(self.policy, Policy) and not isinstance(self.policy, type)
        require(is_policy, "policy", self.policy, "a policy, such as Dbw()")
        require(self.k_min >= 1, "k_min", self.k_min, "at least 1")
        if self.k_max is not None:
            require(self.k_max >= self.k_min, "k_max", self.k_max, f"at least k_min, {self.k_min}")
        window = self.averaging_window
        require(1 <= window <= MAX_WINDOW, "averaging_window", window, f"between 1 and {MAX_WINDOW}")
        half_life = self.sample_half_life
        if half_life is not None:
            require(1e-3 <= half_life <= 1e12, "sample_half_life", half_life, "between 0.001 and 1e12")

    def bound(self, k: int, workers: int) -> int:
        """The k nearest to the given one that the bounds and the number of workers allow."""
        return max(1, min(max(k, self.k_min), self.k_max or workers, workers))

    def snapshot(self) -> "SpecState":
        """The specification as a state."""
        half_life = None if self.sample_half_life is None else float(self.sample_half_life)
        changed = {"policy": policy_name(self.policy), "sample_half_life": half_life}
        return SpecState(parameters=policy_parameters(self.policy), **vars(self) | changed)


class SpecState(Struct, frozen=True):
    """A specification, with its policy by name."""

    policy: Name
    parameters: dict[Name, bool | int | Real]
    k_min: Count
    k_max: Count | None
    averaging_window: Count
    sample_half_life: Real | None
    unsampled_duration: UnsampledDuration
    sync_mode: SyncMode

    def spec(self) -> JobSpec:
        """The specification that the snapshot was taken of."""
        if self.policy not in POLICIES:
            raise NotSupportedError(f"the policy {self.policy!r} is not registered here: load it with --policies")
        values = asdict(self)
        name, parameters = values.pop("policy"), values.pop("parameters")
        return JobSpec(create_policy(name, parameters), **values)
