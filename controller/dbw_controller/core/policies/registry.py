"""Policies by name. Those of ours are here; others are added to the same table when a process loads them."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints

from dbw_controller.core.policies.adasync import AdaSync
from dbw_controller.core.policies.dbw import BlindDbw, Dbw
from dbw_controller.core.policies.dbw_plus import DbwPlus
from dbw_controller.core.policies.policy import Policy
from dbw_controller.core.policies.static import Static, Sync
from dbw_controller.core.validation import require

POLICIES: dict[str, type[Policy]] = {
    "adasync": AdaSync,
    "b-dbw": BlindDbw,
    "dbw": Dbw,
    "dbw-plus": DbwPlus,
    "static": Static,
    "sync": Sync,
}
DEFAULT = "dbw-plus"  # docs/policies.md says why


def built_in_policies() -> list[Policy]:
    """One of each policy that uses kernels."""
    return [Dbw(), BlindDbw(), DbwPlus()]


def register_policy(name: str, kind: Any) -> None:  # noqa: ANN401
    """Add a policy under a name; refuses a class that is not one."""
    is_policy = isinstance(kind, type) and is_dataclass(kind) and hasattr(kind, "choose") and hasattr(kind, "inputs")
    rule = "a frozen dataclass with `inputs` and `choose`, see dbw_controller.core.policies.Policy"
    require(is_policy, f"the policy {name}", kind, rule)
    for parameter, type_ in _parameters(kind).items():
        require(type_ in (bool, int, float), f"the type of {name}.{parameter}", type_, "bool, int or float")
    require(POLICIES.get(name, kind) is kind, f"the policy {name}", kind, "another name: this one is taken")
    POLICIES[name] = kind


def create_policy(name: str, parameters: Mapping[str, float] | None = None) -> Policy:
    """Make the policy of this name. Parameters that are left out have the policy's own defaults."""
    kind = _known(name)
    types, values = _parameters(kind), {}
    for parameter, value in (parameters or {}).items():
        rule = f"one of {', '.join(types)}" if types else "left out: it has none"
        require(parameter in types, f"parameter of the policy {name}", parameter, rule)
        require(math.isfinite(value), f"policy.{parameter}", value, "finite")
        values[parameter] = types[parameter](value)
        require(values[parameter] == value, f"policy.{parameter}", value, f"of type {types[parameter].__name__}")
    for field in _fields(kind):
        needed = field.default is MISSING and field.name not in values
        require(not needed, f"policy.{field.name}", None, f"given: the policy {name} has no default for it")
    return kind(**values)


def policy_name(policy: Policy) -> str:
    """The name that a policy is registered with."""
    names = [name for name, kind in POLICIES.items() if kind is type(policy)]
    require(bool(names), "policy", type(policy).__name__, f"registered: one of {', '.join(POLICIES)}")
    return names[0]


def policy_parameters(policy: Policy) -> dict[str, float]:
    """A policy's parameters, as they go into `create_policy`."""
    return {field.name: getattr(policy, field.name) for field in _fields(type(policy))}


def policy_fields(name: str) -> list[str]:
    """The names of a policy's parameters, in their order."""
    return [field.name for field in _fields(_known(name))]


def _known(name: str) -> type[Policy]:
    require(name in POLICIES, "policy", name, f"one of {', '.join(POLICIES)}")
    return POLICIES[name]


def _parameters(kind: type[Policy]) -> dict[str, Any]:
    """The types of a policy's parameters."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in _fields(kind)}


def _fields(kind: type[Policy]) -> tuple[Field[Any], ...]:
    return fields(kind)  # type: ignore[arg-type] # a protocol cannot say that it takes dataclasses only
