"""`dbw demo` as a newcomer runs it, in a small setting: real services, a real terminal, a real browser."""

import json
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

from tests.node import BROWSER, needs_browser, run_node
from tests.servers import PATIENCE, wait_until

DEMO = [sys.executable, "-m", "dbw_runtime.cli", "demo"]
SMALL = ["--workers=3", "--target-loss=1.5", "--delay=exp:0.005 * factors:1,1,4", "--policies=dbw sync static:2"]
LONG = ["--workers=2", "--target-loss=0.001", "--max-seconds=1000"]  # until something happens to it


def demo(*flags: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*DEMO, *flags, f"--output={folder}"], capture_output=True, text=True, timeout=4 * PATIENCE, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def done(folder: Path) -> "subprocess.CompletedProcess[str]":
    done = demo(*SMALL, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def result(done: "subprocess.CompletedProcess[str]", folder: Path) -> Path:  # noqa: ARG001 (when that is done)
    return next(folder.iterdir())


def test_it_ends_with_a_table_and_the_report(done: "subprocess.CompletedProcess[str]", result: Path) -> None:
    rows = {name: re.findall(rf"│ {name} .*", done.stdout) for name in ("dbw", "sync", "static:2")}
    assert all(len(found) == 1 for found in rows.values()), done.stdout
    assert "3.0" in rows["sync"][0], "which waits for all three"
    assert "2.0" in rows["static:2"][0]
    assert re.search(r"\d\.\d\d×", rows["sync"][0])
    assert f"Report: {result / 'report.html'}" in done.stdout
    assert done.stderr == ""


def test_every_service_was_a_process_of_its_own_and_has_logged(result: Path) -> None:
    logs = {path.stem for path in (result / "logs").iterdir()}
    each = {f"{policy}-{who}" for policy in ("dbw", "sync", "static-2") for who in ("ps", *workers())}
    assert logs == {"controller", *each}
    for path in (result / "logs").iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert not [line for line in lines if line["level"] == "error"], path
        assert any(line["message"] in ("ready", "stopped") for line in lines), path


def workers() -> list[str]:
    return [f"process-{i}" for i in range(3)]


@pytest.mark.parametrize("policy", ["dbw", "sync", "static-2"])
def test_the_loss_came_down_to_the_target_by_decisions_of_the_controller(result: Path, policy: str) -> None:
    entries = [json.loads(line) for line in (result / policy / "training.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in entries]
    assert sum(losses[-10:]) / 10 <= 1.5 < losses[0]
    assert all(entry["k"] == {"sync": 3, "static-2": 2}.get(policy, entry["k"]) for entry in entries)
    log = (result / "logs/controller.log").read_text()
    assert re.search(f'"job": "{policy}"', log)


@needs_browser
def test_the_report_has_the_plots_and_no_errors_in_a_real_browser(result: Path) -> None:
    seen = run_node("report.mjs", {"report": str(result / "report.html"), "chromium": BROWSER})
    assert (seen["console"], seen["errors"], seen["failed"]) == ([], [], [])
    for view in seen["views"].values():
        assert len(view["figures"]) == 5
        assert all(figure["width"] > 200 and figure["height"] > 100 for figure in view["figures"])
        assert re.search(r"loss 1.5", view["headline"])


def test_a_target_that_is_not_reached_is_a_failure(tmp_path: Path) -> None:
    done = demo("--workers=1", "--policies=sync", "--target-loss=1e-6", "--max-seconds=1", folder=tmp_path)
    assert done.returncode == 1
    assert "The target was missed under sync: try a higher --target-loss, more --max-seconds" in done.stdout
    assert re.search(r"│ sync +│ +> \d", done.stdout)
    assert "did not reach loss 1e-06" in next(tmp_path.glob("*/report.html")).read_text()


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

    def __init__(self, folder: Path) -> None:
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            os.environ["COLUMNS"], os.environ["TERM"] = "100", "xterm"
            os.execv(sys.executable, [*DEMO, *LONG, f"--output={folder}"])  # noqa: S606
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
def on_terminal(tmp_path: Path) -> Iterator[OnTerminal]:
    """A demonstration that trains and will not end by itself."""
    running = OnTerminal(tmp_path)
    try:
        wait_until(lambda: "iteration" in running.output)
        yield running
    finally:
        for pid in [*children(running.pid), running.pid]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_the_terminal_shows_k_loss_and_who_is_late_while_it_runs(on_terminal: OnTerminal) -> None:
    wait_until(lambda: "gradients late" in on_terminal.output)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_terminal.output)
    assert re.search(r"k = \d of 2", shown)
    assert re.search(r"loss \d\.\d+, target 0\.001", shown)
    assert re.search(r"worker 1 .* \d+ of \d+ gradients late", shown)


def test_ctrl_c_ends_every_process(on_terminal: OnTerminal) -> None:
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
