"""Programs that run while a test watches what they say."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers import PATIENCE


@contextmanager
def started(
    *command: str, cwd: Path | None = None, patience: float = PATIENCE, **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """Let a program run, with all that it says in its output; it is gone afterwards, or when it takes too long."""
    output: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=cwd, env={**os.environ, **environment}, **output) as process:
        out_of_patience = threading.Timer(patience, process.kill)
        out_of_patience.start()
        try:
            yield process
        finally:
            out_of_patience.cancel()
            process.kill()


def wait_for_line(process: "subprocess.Popen[str]", begin: str) -> None:
    """Read what a program says, up to a line that begins so."""
    assert process.stdout is not None
    read = []
    for line in process.stdout:
        if line.startswith(begin):
            return
        read.append(line)
    raise AssertionError(f"no line {begin!r} in {read}")
