"""Files and connections, in processes with a limit of their own."""

import subprocess
import sys

import pytest

resource = pytest.importorskip("resource", reason="only POSIX systems limit the files of a process")
CODE = """
import logging, resource, sys
logging.basicConfig(format="%(levelname)s")
soft, hard, asked = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from dbw_runtime.descriptors import max_connections
print(max_connections(asked), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "connections", "warns"),
    [
        (64, 2000, 1000, 1000, False),
        (64, 1000, 4096, 900, False),
        (256, 256, 4096, 156, False),
        (120, 120, 4096, 60, True),
        (120, 120, 50, 50, False),
    ],
)
def test_connections_leave_files_over_and_the_limit_is_raised(
    soft: int, hard: int, asked: int, connections: int, warns: bool
) -> None:
    command = [sys.executable, "-c", CODE, str(soft), str(hard), str(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(connections), str(hard), str(hard)]
    assert ("WARNING" in done.stderr) is warns
