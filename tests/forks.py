"""Programs that are there at once: forked from a process that has imported and compiled what takes seconds."""

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

# The process to fork from calls nothing of gRPC, which forks would not survive.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.preloaded"])


class Process:
    """A process as `python -m MODULE ARGUMENTS` would be, with the interface of `subprocess.Popen`.

    What Python and our modules read from the environment while they are imported has no effect on it.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None = None,
        *,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        outputs = {
            number: Connection(os.dup(file), readable=False)
            for number, file in ((1, stdout), (2, stderr))
            if file is not None
        }
        where = (folder or Path.cwd(), {**os.environ, **environment})
        self._process = PROCESSES.Process(target=_run, args=(module, arguments, *where, outputs))
        self._process.start()
        for output in outputs.values():
            output.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Wait for its end; returns its exit code."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, "it has not ended"
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """End it as an orchestrator would."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power failure would."""
        self.send_signal(signal.SIGKILL)


def _run(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    outputs: Mapping[int, "Connection[bytes, bytes]"],
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, output in outputs.items():
        os.dup2(output.fileno(), number)
        output.close()
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # which processes of multiprocessing leave out
