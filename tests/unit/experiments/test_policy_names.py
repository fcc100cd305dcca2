"""Policies are told apart by the text that names them."""

import pytest

from dbw_experiments.laboratory.runs import Run
from dbw_experiments.policy_names import parse_policy


@pytest.mark.parametrize(
    ("text", "name", "label"),
    [
        ("dbw", "dbw", "DBW"),
        ("b-dbw", "b-dbw", "B-DBW"),
        ("adasync", "adasync", "AdaSync"),
        ("adasync:initial_k=2", "adasync", "AdaSync (initial_k=2)"),
        ("static:8", "static", "k = 8"),
        ("static:k=8", "static", "k = 8"),
        ("sync", "sync", "k = n"),
        ("mine:2", "mine", "mine (2)"),
        ("my/file.py:Mine", "my/file.py:Mine", "Mine"),
        ("file.py:Mine:key=3,other=4", "file.py:Mine", "Mine (key=3,other=4)"),
        ("package.module:Mine:3", "package.module:Mine", "Mine (3)"),
    ],
)
def test_a_policy_has_a_name_or_a_place_and_a_readable_label(text: str, name: str, label: str) -> None:
    assert parse_policy(text).name == name
    assert parse_policy(text).label == label


@pytest.mark.parametrize(("text", "k"), [("static:3", 3), ("static:k=3", 3), ("static:3.0", 3), ("sync", 5)])
def test_the_k_of_a_static_policy_is_its_parameter_or_the_number_of_workers(text: str, k: int) -> None:
    run = Run(model="mlp", dataset="digits", workers=5, batch=8, policy=text, rate=0.1, delay="exp:1", seed=0)
    assert run.static_k == k


@pytest.mark.parametrize("text", ["static.py:Mine", "static:Mine", "sync:Sync", "adasync:Mine:3", "adasync.py:Mine"])
def test_a_policy_of_ones_own_is_not_taken_for_one_of_ours(text: str) -> None:
    named = parse_policy(text)
    assert (named.is_static, named.ignores_time) == (False, False)


def test_static_policies_and_adasync_ignore_time() -> None:
    assert all(parse_policy(text).ignores_time for text in ("static:3", "sync", "adasync", "adasync:2"))
    assert not parse_policy("dbw").ignores_time
