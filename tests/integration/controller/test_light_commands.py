"""Commands that only ask a controller start without what the algorithm and the training need."""

import pytest

from tests.programs import dbw

HEAVY = ("numba", "torch", "numpy")


@pytest.mark.parametrize("command", ["jobs", "watch", "why", "delete", "doctor", "conformance", "health"])
def test_a_command_that_asks_a_controller_loads_nothing_heavy(command: str) -> None:
    done = dbw(command, "--help", PYTHONPROFILEIMPORTTIME="1").run()
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert done.returncode == 0
    assert "dbw_runtime" in loaded
    assert not loaded & set(HEAVY)
