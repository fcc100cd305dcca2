"""What a job is created with: how k is to be chosen for it."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dbw_controller.core import plain
from dbw_controller.core.errors import NotSupportedError
from dbw_controller.core.estimators.durations import UnsampledDuration
from dbw_controller.core.policies import DEFAULT, POLICIES, Policy, create_policy, policy_name, policy_parameters
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
        require(is_policy, "spec.policy", self.policy, "a policy, such as Dbw()")
        require(self.k_min >= 1, "spec.k_min", self.k_min, "at least 1")
        if self.k_max is not None:
            require(self.k_max >= self.k_min, "spec.k_max", self.k_max, f"at least k_min, {self.k_min}")
        window = self.averaging_window
        require(1 <= window <= 1_000_000, "spec.estimation.averaging_window", window, "between 1 and 1000000")
        if self.sample_half_life is not None:
            name = "spec.estimation.sample_half_life_iterations"
            require(1e-3 <= self.sample_half_life <= 1e12, name, self.sample_half_life, "between 0.001 and 1e12")

    def bound(self, k: int, workers: int) -> int:
        """The k nearest to the given one that the bounds and the number of workers allow."""
        return max(1, min(max(k, self.k_min), self.k_max or workers, workers))

    def as_plain(self) -> dict[str, Any]:
        """The specification as plain data."""
        return {
            "policy": policy_name(self.policy),
            "parameters": policy_parameters(self.policy),
            "k_min": self.k_min,
            "k_max": self.k_max,
            "averaging_window": self.averaging_window,
            "sample_half_life": self.sample_half_life,
            "unsampled_duration": self.unsampled_duration.value,
            "sync_mode": self.sync_mode.value,
        }

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> "JobSpec":
        """The specification that plain data describe."""
        if data["policy"] not in POLICIES:
            raise NotSupportedError(f"the policy {data['policy']!r} is not registered here: add it to POLICIES first")
        return cls(
            policy=create_policy(data["policy"], data["parameters"]),
            k_min=plain.integer(data["k_min"]),
            k_max=plain.optional(plain.integer, data["k_max"]),
            averaging_window=plain.integer(data["averaging_window"]),
            sample_half_life=plain.optional(plain.real, data["sample_half_life"]),
            unsampled_duration=UnsampledDuration(data["unsampled_duration"]),
            sync_mode=SyncMode(data["sync_mode"]),
        )
