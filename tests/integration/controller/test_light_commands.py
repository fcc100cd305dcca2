"""Commands that only ask a controller start without what the algorithm and the training need."""

import subprocess
import sys

import pytest

from tests.servers import PATIENCE

HEAVY = {"numba", "torch", "numpy"}


@pytest.mark.parametrize("command", ["jobs", "watch", "why", "delete", "doctor", "conformance", "health"])
def test_a_command_that_asks_a_controller_loads_nothing_heavy(command: str) -> None:
    # An interpreter of its own: forks of the tests' process have everything loaded.
    started = [sys.executable, "-X", "importtime", "-m", "dbw_runtime.cli", command, "--help"]
    done = subprocess.run(started, capture_output=True, text=True, timeout=PATIENCE, check=True)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "dbw_runtime" in loaded
    assert not loaded & HEAVY
