"""The last release and this tree: their programs, as real processes, side by side."""

import os
import subprocess
import sys
import tarfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest

from tests.programs import Program
from tests.servers import PATIENCE, Controller, ParameterServer, Worker, begun, running
from tests.version import ROOT

# A tag and the commit that it names: clones of a CI have the history, but not always its tags.
TAG, COMMIT = (ROOT / "tests/upgrade/last-release").read_text().split()
PACKAGES = ("protos", "runtime", "controller", "ps", "worker", "experiments")


class _OtherController(Controller):
    is_forked = False  # the process to fork from has the modules of this tree


class _OtherParameterServer(ParameterServer):
    is_forked = False


class _OtherWorker(Worker):
    is_forked = False


@dataclass(frozen=True)
class Version:
    """The programs of a tree, which is this one where it has no folder."""

    folder: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What has an interpreter import the packages of this version."""
        if self.folder is None:
            return {}
        # Compiling takes half a minute where it was never done; uncompiled kernels compute the same.
        path = os.pathsep.join(str(self.folder / package) for package in PACKAGES)
        return {"PYTHONPATH": path, "NUMBA_DISABLE_JIT": "1"}

    def controller(self, *flags: str, **environment: str) -> "AbstractContextManager[Controller]":
        """A controller that is ready, and is gone afterwards."""
        kind = Controller if self.folder is None else _OtherController
        return running(kind(*flags, **environment, **self.environment))

    def parameter_server(self, *flags: str) -> "AbstractContextManager[ParameterServer]":
        """A parameter server that is ready, and is gone afterwards."""
        kind = ParameterServer if self.folder is None else _OtherParameterServer
        return running(kind(*flags, **self.environment))

    def worker(self, target: str, id_: str, *flags: str) -> "AbstractContextManager[Worker]":
        """A worker, which is gone afterwards."""
        kind = Worker if self.folder is None else _OtherWorker
        return begun(kind(target, id_, "--threads", "1", *flags, **self.environment))

    def run(self, module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a program to its end."""
        if self.folder is None:
            return Program(module, arguments).run()
        return self.interpret("-m", module, *arguments)

    def interpret(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a new interpreter to its end."""
        with self.started(*arguments, stderr=subprocess.PIPE) as process:
            stdout, stderr = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    def started(self, *arguments: str, stderr: int | None = None) -> "subprocess.Popen[str]":
        """Start a new interpreter, whose output can be read."""
        environment = {**os.environ, **self.environment}
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)


def checked_out(folder: Path) -> Version:
    """The last release in a folder, or a skipped test where this clone does not have it."""
    archive = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode != 0:
        problem = archive.stderr.decode().strip()
        pytest.skip(f"UPGRADES ARE NOT TESTED: {TAG} ({COMMIT}) is not in this clone: {problem}")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return Version(folder)
