"""Programs that tests run to their end."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from tests.forks import Process
from tests.servers import PATIENCE

# No port of a controller that somebody runs here.
ADDRESSES = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")


@dataclass(frozen=True)
class Program:
    """How to start one: a module, its arguments, and variables beside those of the tests."""

    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, patience: float = PATIENCE, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
        """Run it to its end, in the folder of the tests or another."""
        with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
            files = {"stdout": stdout.fileno(), "stderr": stderr.fileno()}
            process = Process(self.module, self.arguments, self.environment, folder, **files)
            try:
                code = process.wait(patience)
            finally:
                process.kill()
            stdout.seek(0)
            stderr.seek(0)
            return subprocess.CompletedProcess(self.arguments, code, stdout.read(), stderr.read())

    def run_unread(self) -> tuple[int, str]:
        """Run it where nobody reads what it writes; returns its exit code, and what it says about that."""
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", self.module, *self.arguments]
        with os.fdopen(writer, "wb") as pipe:
            done = subprocess.run(
                command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False
            )
        return done.returncode, done.stderr


def dbw(*arguments: str, **environment: str) -> Program:
    """The `dbw` command."""
    return Program("dbw_runtime.cli", arguments, environment)


def controller_program(*flags: str, **environment: str) -> Program:
    """A controller, with free ports unless flags say otherwise."""
    return Program("dbw_controller", (*ADDRESSES, *flags), environment)
