"""What the demonstration makes of its options."""

import pytest

from dbw_controller.contract import NAME
from dbw_experiments.demo.app import DemoOptions, job_name


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ("dbw-plus", "dbw-plus"),
        ("static:4", "static-4"),
        ("adasync:initial_k=2", "adasync-initial_k-2"),
        ("./my rules/mine.py:Mine:k=2,share=0.5", "my-rules-mine.py-Mine-k-2-share-0.5"),
    ],
)
def test_a_training_is_called_after_its_policy_by_a_name_that_a_job_may_have(policy: str, name: str) -> None:
    assert job_name(policy) == name
    assert NAME.fullmatch(name)


def test_the_command_for_doing_it_again_has_what_differs_from_the_defaults() -> None:
    assert DemoOptions().command() == "dbw demo"
    assert DemoOptions(batch_size=7, policies="dbw sync").command() == "dbw demo '--policies=dbw sync' --batch-size=7"
