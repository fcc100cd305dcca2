"""Policies as people name them: ours, those of installed packages, and anybody's by the place of its class.

`dbw`, `static:8`, `adasync:initial_k=2`, `package.module:Class`, `path/to/rules.py:Class:share=0.5`. A package
announces its policies as entry points of the group `dbw.policies`. Only whoever starts a process can name a place: what
a client asks a controller for must be registered there already.
"""

import logging
from importlib.metadata import entry_points

from dbw_controller.core.errors import InvalidValueError, JobError
from dbw_controller.core.policies import POLICIES, Policy, create_policy, policy_fields, register_policy
from dbw_runtime.configuration import WrongValueError
from dbw_runtime.parameters import numbers_by_key, split_parameters
from dbw_runtime.plugins import Plugin

log = logging.getLogger(__name__)
ENTRY_POINTS = "dbw.policies"


def policy_from(text: str, option: str = "policy") -> Policy:
    """The policy that the value of an option names."""
    name, parameters = split_parameters(text, plugins=text.partition(":")[0].strip() not in POLICIES)
    try:
        load_policy(name, option)
        return create_policy(name, numbers_by_key(parameters, policy_fields(name)))
    except (JobError, ValueError) as error:
        names = f"one of {', '.join(POLICIES)}, package.module:Class or file.py:Class"
        forms = "with parameters such as static:8 or dbw:loss_increase_factor=1.05"
        raise WrongValueError(option, text, f"{names}, {forms} ({error})") from None


def load_policy(name: str, option: str = "policy") -> None:
    """Register the policy that an installed package announces under a name, or whose class is at the place it names."""
    if name in POLICIES:
        return
    announced = list(entry_points(group=ENTRY_POINTS, name=name))
    place = announced[0].value if announced else name
    if ":" in place:
        register_policy(name, Plugin(option, place, "the class of a policy").function())


def load_installed_policies() -> None:
    """Register all policies that installed packages announce. One that cannot be loaded is logged and left out."""
    for announced in entry_points(group=ENTRY_POINTS):
        try:
            load_policy(announced.name)
        except (WrongValueError, InvalidValueError) as error:
            log.error("policy not loaded: %s", error, extra={"policy": announced.name})
