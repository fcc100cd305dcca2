"""What the other tests of this folder rely on."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.upgrade.versions import COMMIT, TAG, Version
from tests.version import ROOT

FIND = """
import importlib.util, json
names = ("dbw", "dbw_runtime", "dbw_controller", "dbw_ps", "dbw_worker", "dbw_experiments")
print(json.dumps([list(importlib.util.find_spec(name).submodule_search_locations)[0] for name in names]))
"""


def test_programs_of_the_release_import_its_own_packages(release: Version) -> None:
    assert release.folder is not None
    done = release.interpret("-c", FIND)
    assert [release.folder in Path(found).parents for found in json.loads(done.stdout)] == [True] * 6


def test_the_tag_is_of_the_commit_that_is_written_down() -> None:
    command = ["git", "rev-parse", "--quiet", "--verify", f"{TAG}^{{commit}}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip(f"the tag {TAG} is not in this clone, so that only its commit is compared with")
    assert found.stdout.strip() == COMMIT
