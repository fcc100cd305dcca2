"""Programs that tests run to their end."""

import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.servers import PATIENCE

# No port of a controller that somebody runs here.
ADDRESSES = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")


@dataclass(frozen=True)
class Program:
    """How to start one: arguments to Python, and variables beside those of the tests."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> "subprocess.CompletedProcess[str]":
        """Run it to its end."""
        command, environment = [sys.executable, *self.arguments], {**os.environ, **self.environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)

    def run_unread(self) -> tuple[int, str]:
        """Run it where nobody reads what it writes; returns its exit code, and what it says about that."""
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, *self.arguments]
        with os.fdopen(writer, "wb") as pipe:
            done = subprocess.run(
                command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False
            )
        return done.returncode, done.stderr


def dbw(*arguments: str, **environment: str) -> Program:
    """The `dbw` command."""
    return Program(("-m", "dbw_runtime.cli", *arguments), environment)


def controller_program(*flags: str, **environment: str) -> Program:
    """A controller, with free ports unless flags say otherwise."""
    return Program(("-m", "dbw_controller", *ADDRESSES, *flags), environment)


def run_all(programs: Mapping[str, Program]) -> dict[str, "subprocess.CompletedProcess[str]"]:
    """Run programs side by side: most of their time is the same imports."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(programs, pool.map(Program.run, programs.values()), strict=True))
