"""How k is to be chosen, as options say it."""

from dbw.v1.job_pb2 import JobSpec as JobSpecMessage
from dbw_controller.core.policies import DEFAULT
from dbw_controller.core.spec import JobSpec, SyncMode
from dbw_controller.named_policies import policy_from
from dbw_controller.wire import messages


def spec_of(policy: str | None, sync_mode: SyncMode, sample_half_life: float | None = None) -> JobSpec:
    """How k is to be chosen in this process; without a policy, by the default one."""
    return JobSpec(policy_from(policy or DEFAULT), sync_mode=sync_mode, sample_half_life=sample_half_life)


def spec_message_of(policy: str | None, sync_mode: SyncMode, sample_half_life: float | None = None) -> JobSpecMessage:
    """How a controller is to choose k; without a policy, by its own default."""
    message = messages.spec_message(spec_of(policy, sync_mode, sample_half_life))
    if policy is None:
        message.ClearField("policy")
    return message
