"""How k is to be chosen, as options say it."""

from collections.abc import Sequence

from dbw.v1.job_pb2 import JobSpec as JobSpecMessage
from dbw_controller.core.policies import DEFAULT
from dbw_controller.core.spec import JobSpec, SyncMode
from dbw_controller.named_policies import policy_from
from dbw_controller.wire import messages
from dbw_ps.decider import Decider
from dbw_ps.embedded import EmbeddedDecider
from dbw_ps.options import PsOptions
from dbw_ps.remote import RemoteDecider


def spec_of(policy: str | None, sync_mode: SyncMode, sample_half_life: float | None = None) -> JobSpec:
    """How k is to be chosen in this process; without a policy, by the default one."""
    return JobSpec(policy_from(policy or DEFAULT), sync_mode=sync_mode, sample_half_life=sample_half_life)


def spec_message_of(policy: str | None, sync_mode: SyncMode, sample_half_life: float | None = None) -> JobSpecMessage:
    """How a controller is to choose k; without a policy, by its own default."""
    message = messages.spec_message(spec_of(policy, sync_mode, sample_half_life))
    if policy is None:
        message.ClearField("policy")
    return message


def make_decider(options: PsOptions, workers: Sequence[int], iteration: int) -> Decider:
    """What chooses k for these workers from an iteration on."""
    mode = SyncMode(options.sync_mode)
    if options.controller is None:
        return EmbeddedDecider(options.job, spec_of(options.policy, mode), workers, iteration)
    spec = spec_message_of(options.policy, mode)
    return RemoteDecider(options.client().job(options.job, workers, spec, iteration))
