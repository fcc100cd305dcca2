"""Rules that choose k. A new one is a file beside this and a line in `POLICIES`."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

from dbw_controller.core.policies.adasync import AdaSync
from dbw_controller.core.policies.blind_dbw import BlindDbw
from dbw_controller.core.policies.dbw import Dbw
from dbw_controller.core.policies.dbw_plus import DbwPlus
from dbw_controller.core.policies.policy import Choice, LearningPolicy, Memory, Observation, Policy
from dbw_controller.core.policies.static import Static
from dbw_controller.core.policies.sync import Sync
from dbw_controller.core.validation import require

__all__ = ["DEFAULT", "POLICIES", "AdaSync", "BlindDbw", "Choice", "Dbw", "DbwPlus", "LearningPolicy", "Memory"]
__all__ += ["Observation", "Policy", "Static", "Sync"]
__all__ += ["create_policy", "policy_name", "policy_parameters"]

POLICIES: dict[str, type[Policy]] = {
    "adasync": AdaSync,
    "b-dbw": BlindDbw,
    "dbw": Dbw,
    "dbw-plus": DbwPlus,
    "static": Static,
    "sync": Sync,
}
DEFAULT = "dbw-plus"  # docs/policies.md says why


def create_policy(name: str, parameters: Mapping[str, float] | None = None) -> Policy:
    """Make the policy of this name. Parameters that are left out have the policy's own defaults."""
    require(name in POLICIES, "policy", name, f"one of {', '.join(POLICIES)}")
    kinds = {field.name: get_type_hints(POLICIES[name])[field.name] for field in _fields(POLICIES[name])}
    for parameter, kind in kinds.items():
        require(kind in (bool, int, float), f"the type of {name}.{parameter}", kind, "bool, int or float")
    values = {}
    for parameter, value in (parameters or {}).items():
        rule = f"one of {', '.join(kinds)}" if kinds else "left out: it has none"
        require(parameter in kinds, f"parameter of the policy {name}", parameter, rule)
        require(math.isfinite(value), f"policy.{parameter}", value, "finite")
        values[parameter] = kinds[parameter](value)
        require(values[parameter] == value, f"policy.{parameter}", value, f"of type {kinds[parameter].__name__}")
    for field in _fields(POLICIES[name]):
        needed = field.default is MISSING and field.name not in values
        require(not needed, f"policy.{field.name}", None, f"given: the policy {name} has no default for it")
    return POLICIES[name](**values)


def policy_name(policy: Policy) -> str:
    """The name that a policy is registered with."""
    names = [name for name, kind in POLICIES.items() if kind is type(policy)]
    require(bool(names), "policy", type(policy).__name__, f"registered: one of {', '.join(POLICIES)}")
    return names[0]


def policy_parameters(policy: Policy) -> dict[str, float]:
    """A policy's parameters, as they go into `create_policy`."""
    return {field.name: getattr(policy, field.name) for field in _fields(type(policy))}


def _fields(kind: type[Policy]) -> tuple[Field[Any], ...]:
    return fields(kind)  # type: ignore[arg-type] # a protocol cannot say that it takes dataclasses only
