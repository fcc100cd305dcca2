"""Policies of users are found by the place of their class, or by what an installed package announces."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbw_controller.core.job import Job
from dbw_controller.core.policies import POLICIES, Static, policy_name, policy_parameters
from dbw_controller.core.reports import Membership
from dbw_controller.core.spec import JobSpec
from dbw_controller.named_policies import load_installed_policies, policy_from
from dbw_runtime.configuration import WrongValueError

RULES = """
from dataclasses import dataclass
from typing import ClassVar
from dbw_controller.core.policies import Choice
from dbw_controller.core.reasons import Reason

@dataclass(frozen=True)
class Share:
    share: float = 0.75
    inputs: ClassVar = frozenset()
    def choose(self, seen):
        return Choice(max(1, round(self.share * seen.workers)), Reason.CUSTOM, f"{self.share:.0%}")

class NotAPolicy:
    pass
"""


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Let what a test registers be gone afterwards."""
    before = dict(POLICIES)
    yield
    POLICIES.clear()
    POLICIES.update(before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of rules, from which modules are imported as well."""
    (tmp_path / "rules_of_a_user.py").write_text(RULES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def announce(folder: Path, **places: str) -> None:
    """Make a folder look like one with an installed package that announces policies."""
    metadata = folder / "a_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: a-package\nVersion: 1.0\n")
    lines = [f"{name} = {place}" for name, place in places.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[dbw.policies]", *lines]))


@pytest.mark.parametrize("place", ["rules_of_a_user.py:Share", "rules_of_a_user:Share"])
@pytest.mark.parametrize(("parameters", "k"), [("", 6), (":share=0.5", 4), (":0.25", 2)])
@pytest.mark.usefixtures("folder")
def test_a_policy_is_named_by_the_place_of_its_class(place: str, parameters: str, k: int) -> None:
    policy = policy_from(place + parameters)
    assert policy_name(policy) == place
    assert Job(JobSpec(policy), Membership(8)).decision().k == k


@pytest.mark.usefixtures("folder")
def test_a_job_with_such_a_policy_can_be_restored_where_it_is_loaded() -> None:
    job = Job(JobSpec(policy_from("rules_of_a_user.py:Share:share=0.5")), Membership(8))
    copy = Job.restore(job.snapshot())
    assert policy_parameters(copy.spec.policy) == {"share": 0.5}


def test_a_package_announces_policies_by_name(folder: Path) -> None:
    announce(folder, share="rules_of_a_user:Share")
    assert policy_from("share:share=0.5") == policy_from("rules_of_a_user:Share:share=0.5")
    assert policy_from("static:3") == Static(3)


def test_a_policy_that_cannot_be_loaded_does_not_keep_others_from_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    announce(folder, broken="rules_of_a_user:NotAPolicy", missing="no_such_module:Share", share="rules_of_a_user:Share")
    with caplog.at_level(logging.ERROR):
        load_installed_policies()
    assert "share" in POLICIES
    assert {"broken", "missing"}.isdisjoint(POLICIES)
    assert [vars(record)["policy"] for record in caplog.records] == ["broken", "missing"]


@pytest.mark.parametrize(
    "text",
    [
        "magic",
        "rules_of_a_user.py:Nothing",
        "rules_of_a_user.py:NotAPolicy",
        "rules_of_a_user.py:Share:size=1",
        "rules_of_a_user.py:Share:share=much",
        "no_such_module:Share",
        "nowhere.py:Share",
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_cannot_be_used_is_an_error_in_the_option_that_named_it(text: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        policy_from(text, "default_policy")
    assert caught.value.option == "default_policy"
