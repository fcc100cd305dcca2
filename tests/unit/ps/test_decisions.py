"""Policies as options name them."""

import pytest

from dbw_controller.core.policies import DEFAULT, AdaSync, BlindDbw, Dbw, Policy, Static, Sync, create_policy
from dbw_controller.core.spec import SyncMode
from dbw_controller.named_policies import policy_from
from dbw_ps.decisions import spec_message_of, spec_of
from dbw_runtime.configuration import WrongValueError


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("dbw", Dbw()),
        ("dbw:loss_increase_factor=1.05", Dbw(1.05)),
        ("static:8", Static(8)),
        ("static:k=3", Static(3)),
        ("adasync:2", AdaSync(2)),
        ("b-dbw", BlindDbw()),
        ("sync", Sync()),
    ],
)
def test_a_policy_is_named_with_its_parameters(text: str, policy: Policy) -> None:
    assert policy_from(text) == policy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "best",
        "static",
        "static:",
        "static:many",
        "static:0",
        "dbw:x=1",
        "sync:3",
        "static:8.5",
        "static:8,",
        "static:k=3,k=4",
    ],
)
def test_a_policy_that_does_not_exist_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(WrongValueError, match=r"policy is .* one of adasync, b-dbw, dbw, dbw-plus, static, sync"):
        policy_from(text)


def test_without_a_policy_the_controller_s_default_holds() -> None:
    assert not spec_message_of(None, SyncMode.PULL).HasField("policy")
    assert spec_message_of("static:8", SyncMode.PULL).policy.static.k == 8


def test_without_a_policy_and_a_controller_our_default_holds() -> None:
    assert spec_of(None, SyncMode.PULL).policy == create_policy(DEFAULT)
