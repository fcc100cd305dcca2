"""Processes that are there at once: forked from one that has imported PyTorch already, which takes seconds."""

import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from importlib import import_module
from multiprocessing.connection import Connection as Pipe
from typing import IO, Any, cast

from tests import servers

# It calls nothing of gRPC, which forks would not survive.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.workers", "dbw_ps.app", "dbw_worker.app", "torch._dynamo"])

# Of a worker, for a server that trains `tests.models:tiny`.
TINY_WORK = ("--model", "tests.models:tiny", "--dataset", "tests.models:examples", "--batch-size", "16")


class Forked(servers.LoggingProcess):
    """A process as `python -m MODULE` would be."""

    def _start(self, arguments: list[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
        assert not environment, "it has that of the tests"
        receiver, sender = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=_run, args=(self.module, arguments, sender), daemon=True)
        process.start()
        sender.close()
        stderr = os.fdopen(os.dup(receiver.fileno()))
        receiver.close()
        return cast("subprocess.Popen[str]", _Popen(process, stderr))


class ForkedParameterServer(Forked, servers.ParameterServer):
    """A parameter server as `python -m dbw_ps` would be."""


class ForkedWorker(Forked, servers.Worker):
    """A worker as `python -m dbw_worker` would be."""


class _Popen:
    """What tests use of `subprocess.Popen`, for a forked process."""

    def __init__(self, process: multiprocessing.context.ForkServerProcess, stderr: IO[str]) -> None:
        self._process, self.stderr = process, stderr
        self.pid, self.terminate = process.pid, process.terminate

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        assert self.pid is not None
        os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None, "it has not ended"
        return self._process.exitcode


def _run(module: str, arguments: list[str], stderr: "Pipe[Any, Any]") -> None:
    os.dup2(stderr.fileno(), sys.stderr.fileno())
    stderr.close()
    sys.exit(import_module(f"{module}.app").main(arguments))


def parameter_server(*flags: str) -> AbstractContextManager[ForkedParameterServer]:
    """A parameter server that is ready, and is gone afterwards."""
    return servers.running(ForkedParameterServer(*flags))


def worker(target: str, id_: str, *flags: str) -> AbstractContextManager[ForkedWorker]:
    """A worker, whether it gets to work or not; it is gone afterwards. It computes with one thread."""
    return servers.begun(ForkedWorker(target, id_, "--threads", "1", *flags))
