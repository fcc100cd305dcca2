"""Rules that choose k. `Policy` is what each of them is, `registry` knows them by name."""

from dbw_controller.core.policies.adasync import AdaSync
from dbw_controller.core.policies.dbw import BlindDbw, Dbw
from dbw_controller.core.policies.dbw_plus import DbwPlus
from dbw_controller.core.policies.policy import Choice, LearningPolicy, Memory, Observation, Policy
from dbw_controller.core.policies.registry import (
    DEFAULT,
    POLICIES,
    built_in_policies,
    create_policy,
    policy_fields,
    policy_name,
    policy_parameters,
    register_policy,
)
from dbw_controller.core.policies.static import Static, Sync

__all__ = ["DEFAULT", "POLICIES", "AdaSync", "BlindDbw", "Choice", "Dbw", "DbwPlus", "LearningPolicy", "Memory"]
__all__ += ["Observation", "Policy", "Static", "Sync"]
__all__ += [
    "built_in_policies",
    "create_policy",
    "policy_fields",
    "policy_name",
    "policy_parameters",
    "register_policy",
]
