"""`dbw demo` as a newcomer runs it, in a small setting: real services, a real browser."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node import BROWSER, needs_browser, run_node
from tests.servers import PATIENCE

DEMO = [sys.executable, "-m", "dbw_runtime.cli", "demo"]
SMALL = ["--workers=3", "--target-loss=1.5", "--delay=exp:0.005 * factors:1,1,4", "--policies=dbw static:2"]


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
    rows = {name: re.findall(rf"│ {name} .*", done.stdout) for name in ("dbw", "static:2")}
    assert all(len(found) == 1 for found in rows.values()), done.stdout
    assert "2.0" in rows["static:2"][0]
    assert re.search(r"\d\.\d\d×", rows["static:2"][0])
    assert f"Report: {result / 'report.html'}" in done.stdout
    assert done.stderr == ""


def test_every_service_was_a_process_of_its_own_and_has_logged(result: Path) -> None:
    logs = {path.stem for path in (result / "logs").iterdir()}
    each = {f"{policy}-{who}" for policy in ("dbw", "static-2") for who in ("ps", *workers())}
    assert logs == {"controller", *each}
    for path in (result / "logs").iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert not [line for line in lines if line["level"] == "error"], path
        assert any(line["message"] in ("ready", "stopped") for line in lines), path


def workers() -> list[str]:
    return [f"process-{i}" for i in range(3)]


@pytest.mark.parametrize("policy", ["dbw", "static-2"])
def test_the_loss_came_down_to_the_target_by_decisions_of_the_controller(result: Path, policy: str) -> None:
    entries = [json.loads(line) for line in (result / policy / "training.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in entries]
    assert sum(losses[-10:]) / 10 <= 1.5 < losses[0]
    assert policy == "dbw" or {entry["k"] for entry in entries} == {2}
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
