"""`dbw experiment` as users run it, with the small versions of scenarios: real processes, real gradients."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dbw_experiments.laboratory.runs import Record
from dbw_experiments.laboratory.scenario import load_scenario, names
from tests.programs import dbw
from tests.servers import PATIENCE, controller, wait_until

Done = subprocess.CompletedProcess[str]
EXPERIMENT = [sys.executable, "-m", "dbw_runtime.cli", "experiment"]
INTERRUPTED = "round-trip-times"  # it has enough runs for something to happen in the middle
PNG = b"\x89PNG\r\n\x1a\n"
LOG = [  # two workers, k = 1; worker 1 comes late at 2.5 s, and is done with its next gradient after 0.75 s
    {"iteration": 0, "published_seconds": 0.0, "arrivals": [{"iteration": 0, "worker": 0, "seconds": 1.0}]},
    {"iteration": 1, "published_seconds": 1.0, "arrivals": [{"iteration": 0, "worker": 1, "seconds": 2.5}]},
    {"iteration": 2, "published_seconds": 3.0, "arrivals": [{"iteration": 1, "worker": 1, "seconds": 2.25}]},
]


def experiment(*arguments: str, folder: Path | None = None) -> Done:
    return dbw("experiment", *arguments).run(6 * PATIENCE, folder)


def records(path: Path) -> list[Record]:
    return [msgspec.json.decode(line, type=Record) for line in path.read_bytes().splitlines()]


def assert_drawn(folder: Path) -> None:
    assert (folder / "figure.svg").read_text().lstrip().startswith("<?xml")
    assert (folder / "figure.png").read_bytes().startswith(PNG)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experiments")


@pytest.fixture(scope="module")
def everything(output: Path) -> Done:
    done = experiment("all", "--quick", "--output", str(output))
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def quick(everything: Done, output: Path) -> Path:  # noqa: ARG001 (when that is done)
    """The folder of all scenarios' small versions."""
    return output / "quick"


def test_all_scenarios_are_gone_through_and_the_figures_are_told(everything: Done, quick: Path) -> None:
    figures = [quick / name / f"figure.{kind}" for name in names() for kind in ("svg", "png")]
    assert everything.stdout.splitlines() == list(map(str, figures))
    assert "Traceback" not in everything.stderr
    assert sorted(path.name for path in quick.iterdir()) == names()


@pytest.mark.parametrize("name", names())
def test_every_scenario_has_all_its_results_and_a_figure(quick: Path, name: str) -> None:
    assert [record.run for record in records(quick / name / "runs.jsonl")] == load_scenario(name, quick=True).runs()
    assert sorted(path.name for path in (quick / name).iterdir()) == ["figure.png", "figure.svg", "runs.jsonl"]
    assert_drawn(quick / name)


def test_models_learn(quick: Path) -> None:
    """Where the learning rate lets them, in so few iterations; the loss of a guess is ln 10 = 2.3."""
    found = [record for path in quick.glob("*/runs.jsonl") for record in records(path) if record.run.rate >= 0.05]
    assert found
    for record in found:
        assert record.outcome.loss is not None
        assert record.outcome.loss < 2, record.run


def test_what_was_computed_before_is_not_computed_again(quick: Path, tmp_path: Path) -> None:
    """Results stay the same byte by byte, though they are forged: computed again, they would be others."""
    path = tmp_path / "quick" / "slowdown" / "runs.jsonl"
    shutil.copytree(quick / "slowdown", path.parent)
    forged = re.sub(rb'"gradients":\d+', b'"gradients":12345', path.read_bytes())
    assert forged != path.read_bytes()
    path.write_bytes(forged)
    done = experiment("run", "slowdown", "--quick", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == forged


def processes(leader: int) -> list[int]:
    """The processes of a session that are there, without those that have ended and nobody has asked about."""
    listed = subprocess.run(["ps", "-eo", "pid=,sid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, session, state in rows if int(session) == leader and not state.startswith("Z")]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextmanager
def in_the_middle(output: Path) -> Iterator["subprocess.Popen[str]"]:
    """An experiment that has just got a result, in a session of its own; nothing is left of it afterwards."""
    command = [*EXPERIMENT, "run", INTERRUPTED, "--quick", "--jobs", "2", "--output", str(output)]
    path = output / "quick" / INTERRUPTED / "runs.jsonl"
    before = lines(path)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            wait_until(lambda: process.poll() is not None or lines(path) > before)
            assert process.poll() is None, "it is over already"
            assert len(processes(process.pid)) >= 3, "it, and two that compute"
            yield process
        finally:
            for pid in processes(process.pid):
                os.kill(pid, signal.SIGKILL)


def test_whoever_is_interrupted_leaves_no_process_and_goes_on_to_the_same_results(quick: Path, tmp_path: Path) -> None:
    path, whole = tmp_path / "quick" / INTERRUPTED / "runs.jsonl", quick / INTERRUPTED / "runs.jsonl"
    with in_the_middle(tmp_path) as process:
        os.killpg(process.pid, signal.SIGINT)  # to all of them, as a terminal does it for Ctrl-C
        output, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, output) == (130, "")
        assert "Traceback" not in errors
        wait_until(lambda: not processes(process.pid))
    assert 0 < lines(path) < lines(whole)
    with in_the_middle(tmp_path) as process:
        process.kill()
        process.communicate(timeout=PATIENCE)  # which ends when no process has its output any more
        wait_until(lambda: not processes(process.pid))
    assert lines(path) < lines(whole)
    done = experiment("run", INTERRUPTED, "--quick", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == whole.read_bytes()


def test_a_controller_decides_the_same_as_the_experiments_own_process(quick: Path, tmp_path: Path) -> None:
    with controller() as server:
        done = experiment(
            "run", "one-run", "--quick", "--jobs", "1", "--controller", server.target, "--output", str(tmp_path)
        )
        assert done.returncode == 0, done.stderr
    there = tmp_path / "quick" / "controller"  # so that it is not taken for what this process decides
    remote, own = (records(folder / "one-run" / "runs.jsonl") for folder in (there, quick))
    assert [record.run for record in remote] == [record.run for record in own]
    for asked, decided in zip(remote, own, strict=True):
        for name in ("k", "loss", "seconds"):
            assert asked.outcome.columns[name] == decided.outcome.columns[name]
        assert replace(asked.outcome, columns={}) == replace(decided.outcome, columns={})
        # What the controller thought stays with it.
        assert decided.outcome.columns.keys() - asked.outcome.columns.keys() == {
            "estimated_squared_norm",
            "estimated_variance",
            "estimated_smoothness",
        }
    assert_drawn(there / "one-run")


MINE = """
title = "Mine"
figure = "none"
plot = "times"
[setting]
model = "mlp"
dataset = "digits"
workers = 2
batch = 8
delay = "trace:mine.csv"
target_loss = 2.0
iterations = 200
[[compare]]
policy = "sync"
rule = "any"
rate = 0.2
"""
POLICY = """
from dataclasses import dataclass
from typing import ClassVar

from dbw_controller.core.policies import Choice, Observation
from dbw_controller.core.reasons import Input, Reason


@dataclass(frozen=True)
class Always:
    inputs: ClassVar[frozenset[Input]] = frozenset()

    def choose(self, seen: Observation) -> Choice:
        return Choice(K, Reason.CUSTOM, "always K")
"""


def test_a_scenario_with_a_policy_of_ones_own_is_run_again_if_its_trace_or_its_policy_changes(tmp_path: Path) -> None:
    """Worker 0 is the slower one, so that an iteration takes its time with k = 2, and that of worker 1 with k = 1."""
    (tmp_path / "mine.toml").write_text(MINE.replace('"sync"', '"mine.py:Always"'))
    for before, (k, seconds) in enumerate([(2, 1.5), (2, 2.5), (1, 2.5)]):
        (tmp_path / "mine.py").write_text(POLICY.replace("K", str(k)))
        (tmp_path / "mine.csv").write_text(f"step,worker,seconds\n0,0,{seconds}\n0,1,0.5\n")
        done = experiment("run", "mine.toml", "--jobs", "1", "--output", "results", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        record, *earlier = records(tmp_path / "results" / "mine" / "runs.jsonl")
        assert record.outcome.reached == (seconds if k == 2 else 0.5) * record.outcome.iterations
        assert len(earlier) == before
    assert_drawn(tmp_path / "results" / "mine")


def test_the_knee_rule_tells_a_rate_for_each_k_and_draws_them(tmp_path: Path) -> None:
    done = experiment("knee", "--quick", "--k", "1,2", "--seeds", "1", "--jobs", "1", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    header, *rows, svg, png = done.stdout.splitlines()
    assert header.split() == ["k", "knee"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    assert all(0.005 <= float(row.split()[1]) <= 1.3 for row in rows)
    assert [svg, png] == [str(tmp_path / "knee" / f"figure.{kind}") for kind in ("svg", "png")]
    assert_drawn(tmp_path / "knee")
    assert len(records(tmp_path / "knee" / "runs.jsonl")) == 2 * 17


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "training.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in LOG))
    return path


@pytest.fixture(scope="module")
def short(log: Path) -> dict[str, Done]:
    """What takes hardly longer than its imports."""
    commands = {
        "trace": ["trace", str(log), "--output", str(log.with_name("trace.csv"))],
        "trace of a table": ["trace", str(log.with_name("table.csv"))],
        "nowhere": ["run", "nowhere", "--output", str(log.with_name("nowhere"))],
        "nonsense": ["nonsense"],
        "no jobs": ["run", "one-run", "--quick", "--jobs", "0", "--output", str(log.with_name("nowhere"))],
        "wrong device": ["run", "one-run", "--quick", "--device", "gpu", "--output", str(log.with_name("nowhere"))],
        "wrong model": [
            "run",
            "one-run",
            str(log.with_name("mine.toml")),
            "--quick",
            "--output",
            str(log.with_name("nowhere")),
        ],
        "page": ["page", str(log.with_name("reproduction.md")), "--output", str(log.with_name("empty"))],
    }
    log.with_name("table.csv").write_text("step,worker,seconds\n0,0,1.0\n")
    log.with_name("mine.toml").write_text(MINE.replace('"mlp"', '"mlpp"').replace("mine.csv", "table.csv"))
    return {name: experiment(*command) for name, command in commands.items()}


def test_a_trace_is_made_of_a_training_log(short: dict[str, Done], log: Path) -> None:
    assert short["trace"].returncode == 0, short["trace"].stderr
    assert short["trace"].stdout == f"{log.with_name('trace.csv')}: 3 gradients\n"
    assert log.with_name("trace.csv").read_text().splitlines() == [
        "step,worker,seconds",
        "0,0,1.000000",
        "0,1,2.500000",
        "1,1,0.750000",
    ]


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("nowhere", 1, f"there is no scenario 'nowhere'; there are {', '.join(names())}, and files of your own"),
        ("nonsense", 2, "there is no command 'nonsense'"),
        ("no jobs", 2, "--jobs is 0; it must be between 1 and 1024"),
        ("wrong device", 2, "--device is 'gpu'; it must be auto, cpu, or a GPU that is there"),
        ("wrong model", 2, "model is 'mlpp'; it must be one of mlp, mnist-cnn"),
        ("trace of a table", 2, "is not a JSON object with an integer `iteration`"),
        ("page", 1, "are missing: get them with `dbw experiment run"),
    ],
)
def test_what_cannot_be_done_is_told_in_words(short: dict[str, Done], command: str, code: int, text: str) -> None:
    done = short[command]
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(("dbw experiment", "usage: dbw experiment"))
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_written_where_something_is_wrong(short: dict[str, Done], log: Path) -> None:
    assert sum(done.returncode == 0 for done in short.values()) == 1
    assert {path.name for path in log.parent.iterdir()} == {"training.jsonl", "table.csv", "trace.csv", "mine.toml"}
