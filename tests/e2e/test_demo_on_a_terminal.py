"""`dbw demo` on a terminal: what it shows, and that none of its processes outlives it, however it ends."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import PATIENCE, wait_until

DEMO = [sys.executable, "-m", "dbw_runtime.cli", "demo"]
LONG = ["--target-loss=0.001", "--max-seconds=1000"]  # until something happens to it


def children(parent: int) -> dict[int, str]:
    """The processes that a process has started, with their command lines."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    return {int(pid): arguments for pid, ppid, arguments in rows if int(ppid) == parent}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class OnTerminal:
    """A demonstration on a terminal of its own."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            os.environ["COLUMNS"], os.environ["TERM"] = "100", "xterm"
            os.execv(sys.executable, [*DEMO, *LONG, f"--workers={workers}", f"--output={folder}"])  # noqa: S606
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._terminal, 65536):
                self.output += data.decode("utf-8", "replace")
        except OSError:  # its end
            pass

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._terminal, text.encode())

    def wait(self) -> int:
        """Wait for its end; returns its exit code."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._reader.join(PATIENCE)
        return code


@pytest.fixture
def on_terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OnTerminal]:
    """A demonstration that trains and will not end by itself; with one worker, or as many as a test wants."""
    running = OnTerminal(tmp_path, getattr(request, "param", 1))
    try:
        wait_until(lambda: "iteration" in running.output)
        yield running
    finally:
        for pid in [*children(running.pid), running.pid]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("on_terminal", [2], indirect=True)
def test_the_terminal_shows_k_loss_and_who_is_late_until_ctrl_c_ends_every_process(on_terminal: OnTerminal) -> None:
    wait_until(lambda: "gradients late" in on_terminal.output)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_terminal.output)
    assert re.search(r"k = \d of 2", shown)
    assert re.search(r"loss \d\.\d+, target 0\.001", shown)
    assert re.search(r"worker 1 .* \d+ of \d+ gradients late", shown)
    started = children(on_terminal.pid)
    assert len(started) == 4, "a controller, a parameter server, two workers"
    on_terminal.type("\x03")
    assert on_terminal.wait() == 130
    assert not [pid for pid in started if is_alive(pid)]


def test_whoever_presses_ctrl_c_twice_leaves_nothing_behind_either(on_terminal: OnTerminal) -> None:
    started = children(on_terminal.pid)
    on_terminal.type("\x03\x03\x03")
    assert on_terminal.wait() == 130
    assert not [pid for pid in started if is_alive(pid)]


def test_a_terminal_that_is_closed_ends_every_process(on_terminal: OnTerminal) -> None:
    started = children(on_terminal.pid)
    os.kill(on_terminal.pid, signal.SIGHUP)
    assert on_terminal.wait() == 1
    assert not [pid for pid in started if is_alive(pid)]


@pytest.mark.parametrize(
    ("module", "end"),
    [
        ("dbw_controller", signal.SIGTERM),
        ("dbw_ps", signal.SIGKILL),
        ("dbw_worker", signal.SIGTERM),
        ("dbw_worker", signal.SIGKILL),
    ],
)
def test_it_fails_loudly_when_a_service_ends(on_terminal: OnTerminal, module: str, end: signal.Signals) -> None:
    started = children(on_terminal.pid)
    os.kill(next(pid for pid, arguments in started.items() if f"-m {module}" in arguments), end)
    assert on_terminal.wait() == 1
    name = {"dbw_controller": "controller", "dbw_ps": "dbw-plus ps", "dbw_worker": r"dbw-plus process-\d"}[module]
    what = "was killed by signal 9" if end == signal.SIGKILL else "has left too early"
    assert re.search(f"dbw demo: the {name} {what}", on_terminal.output)
    assert not [pid for pid in started if is_alive(pid)]
