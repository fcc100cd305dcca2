"""How k is to be chosen, as options say it."""

from dataclasses import fields

from dbw.v1.job_pb2 import JobSpec as JobSpecMessage
from dbw_controller.core.errors import JobError
from dbw_controller.core.policies import DEFAULT, POLICIES, Policy, create_policy
from dbw_controller.core.spec import JobSpec, SyncMode
from dbw_controller.wire import messages
from dbw_runtime.configuration import WrongValueError


def policy_from(text: str) -> Policy:
    """The policy that an option names: `dbw`, `static:8`, `adasync:initial_k=2`."""
    name, _, rest = text.partition(":")
    try:
        parameters = {}
        for i, part in enumerate(filter(None, rest.split(","))):
            key, equals, value = part.rpartition("=")
            if not equals and i == 0 and name in POLICIES:
                key = next((field.name for field in fields(POLICIES[name])), "")  # type: ignore[arg-type]
            parameters[key.strip()] = float(value)
        return create_policy(name, parameters)
    except (JobError, ValueError) as error:
        expected = f"one of {', '.join(POLICIES)}, with parameters such as static:8 or dbw:loss_increase_factor=1.05"
        raise WrongValueError("policy", text, f"{expected} ({error})") from None


def spec_of(policy: str | None, sync_mode: SyncMode, sample_half_life: float | None = None) -> JobSpec:
    """How k is to be chosen in this process; without a policy, by the default one."""
    return JobSpec(policy_from(policy or DEFAULT), sync_mode=sync_mode, sample_half_life=sample_half_life)


def spec_message_of(policy: str | None, sync_mode: SyncMode, sample_half_life: float | None = None) -> JobSpecMessage:
    """How a controller is to choose k; without a policy, by its own default."""
    message = messages.spec_message(spec_of(policy, sync_mode, sample_half_life))
    if policy is None:
        message.ClearField("policy")
    return message
