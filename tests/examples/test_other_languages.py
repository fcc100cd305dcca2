"""The examples in C++ and TypeScript, built from the contract, against real controllers that come, freeze and go."""

import itertools
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from dbw.v1.controller_pb2 import (
    CreateJobRequest,
    DeleteJobRequest,
    GetJobRequest,
    ListJobsRequest,
    ReportRequest,
)
from dbw.v1.iteration_pb2 import END_CAUSE_DEADLINE, Membership
from tests.conversations.script import SCRIPTS
from tests.examples.claims import assert_all_reported, assert_integrated
from tests.examples.hanging import deciding
from tests.examples.python import EXAMPLES
from tests.examples.recorder import recorded
from tests.examples.running import started, wait_for_line
from tests.node import install, needs_node
from tests.ports import lasting_address
from tests.proxy import Forward, LostConnection, RefusalError, proxied
from tests.servers import PATIENCE, controller, wait_until

HERE = Path(__file__).resolve().parent
WORKERS, SLOW, ITERATIONS = 8, 2, 60
MISSING = [name for name in ("cmake", "c++", "protoc", "grpc_cpp_plugin", "pkg-config") if not shutil.which(name)]
if not MISSING and subprocess.run(["pkg-config", "--exists", "grpc++", "protobuf"]).returncode:
    MISSING = ["the development files of grpc++ and protobuf"]
needs_cpp = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)}: see `make test-examples` for the example in C++"
)
by_both_transports = pytest.mark.parametrize("transport", ["stream", "unary"])


@dataclass(frozen=True)
class Program:
    """An example that was built."""

    command: list[str]
    scripts: list[str]  # the command that runs scripts of conversations
    folder: Path
    hanging: dict[str, str]  # the environment in which workers that sleep for long hang for good, after a while

    def play(self, *scripts: Path) -> "subprocess.CompletedProcess[str]":
        """Run scripts of conversations."""
        return subprocess.run([*self.scripts, *map(str, scripts)], cwd=self.folder, capture_output=True, text=True)

    def run(self, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run it to its end."""
        settings: Any = {"cwd": self.folder, "env": {**os.environ, **environment}, "timeout": PATIENCE}
        return subprocess.run([*self.command, *options], capture_output=True, text=True, check=False, **settings)

    def started(self, *options: str) -> AbstractContextManager["subprocess.Popen[str]"]:
        """Let it run, with all that it says in its output."""
        return started(*self.command, *options, cwd=self.folder)


def build_cpp() -> Program:
    folder = EXAMPLES / "cpp"
    subprocess.run(["cmake", "-S", folder, "-B", folder / "build"], check=True)
    subprocess.run(["cmake", "--build", folder / "build", "--parallel", "2"], check=True)
    hang = folder / "build/hang.so"
    subprocess.run(["c++", "-shared", "-fPIC", "-o", hang, HERE / "hang.cc"], check=True)
    program, scripts = str(folder / "build/parameter_server"), str(folder / "build/conversation_test")
    return Program([program], [scripts], folder, {"LD_PRELOAD": str(hang)})


def build_node() -> Program:
    folder = EXAMPLES / "node"
    install(folder)
    subprocess.run(["npm", "run", "build"], cwd=folder, check=True)
    program, scripts = "build/parameter_server.js", "build/conversation_test.js"
    hang = {"NODE_OPTIONS": f"--import {(HERE / 'hang.mjs').as_uri()}"}
    return Program(["node", program], ["node", scripts], folder, hang)


LANGUAGES = [pytest.param(build_cpp, marks=needs_cpp, id="cpp"), pytest.param(build_node, marks=needs_node, id="node")]


@pytest.fixture(scope="module", params=LANGUAGES)
def program(request: pytest.FixtureRequest) -> Program:
    built: Program = request.param()
    return built


def test_it_converses_as_the_scripts_say(program: Program) -> None:
    done = program.play(*SCRIPTS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(SCRIPTS)} scripts, 0 of them failed\n"


@pytest.mark.parametrize("name", ["a_training", "a_lost_request_is_repeated"])
def test_it_notices_that_it_does_not_converse_as_a_script_says(program: Program, name: str, tmp_path: Path) -> None:
    (script,) = (path for path in SCRIPTS if path.stem == name)
    changed = tmp_path / script.name
    changed.write_text(script.read_text().replace("previous_k=", "previous="))
    done = program.play(changed)
    assert done.returncode == 1
    assert "---- but was" in done.stderr


@by_both_transports
def test_it_trains_as_decided(program: Program, transport: str) -> None:
    """It trains until the controller has learnt enough, however long that takes: nobody waits for its answers."""
    options = ("--job", "example", "--iterations", "100000", "--transport", transport)
    with controller() as server, recorded(server.target) as seen:
        job = seen.job("example")
        with program.started("--controller", seen.target, *options), server.stub() as stub:
            wait_until(lambda: len(job.summaries) > ITERATIONS)
            wait_until(lambda: stub.GetJob(GetJobRequest(job="example")).job.learnt_iterations >= ITERATIONS)
    assert_integrated(job, WORKERS, 100000)
    late = {type(report).__name__ for report in job.reports if any(a in job.late for a in report.arrivals)}
    assert late == {"CoordinateRequest" if transport == "stream" else "EndIterationRequest"}


@by_both_transports
def test_it_ends_by_itself_deletes_its_job_and_says_how_often_it_had_no_decision(
    program: Program, transport: str
) -> None:
    with controller() as server, recorded(server.target) as seen:
        options = ("--job", "example", "--iterations", str(ITERATIONS), "--transport", transport)
        done = program.run("--controller", seen.target, *options)
    assert done.returncode == 0, done.stderr
    job = seen.job("example")
    assert_all_reported(job, ITERATIONS)
    without = re.search(r" (\d+) iterations without a decision", done.stdout)
    assert without, done.stdout
    fallbacks, unreported = sum(one.fallback for one in job.summaries), ITERATIONS - len(job.summaries)
    assert fallbacks <= int(without[1]) <= fallbacks + unreported
    assert DeleteJobRequest in map(type, job.requests), "whether the controller has time for it or not"


@by_both_transports
def test_it_goes_on_while_the_controller_is_restarted(program: Program, transport: str) -> None:
    address, options = lasting_address(), ["--iterations", "5000", "--transport", transport]
    with (
        controller("--listen", address) as server,
        program.started("--controller", address, *options) as process,
    ):
        wait_for_line(process, "iteration 10:")
        server.kill()
        wait_for_line(process, "on fallback")
        with controller("--listen", address):
            wait_for_line(process, "decisions of the controller again")


@by_both_transports
def test_it_goes_on_and_ends_while_the_controller_is_frozen(program: Program, transport: str) -> None:
    options = ["--iterations", "200", "--transport", transport]
    with controller() as server, program.started("--controller", server.target, *options) as process:
        wait_for_line(process, "iteration 10:")
        server.process.send_signal(signal.SIGSTOP)
        wait_for_line(process, "200 iterations")
        assert process.wait() == 0


@by_both_transports
def test_it_leaves_a_job_that_was_taken_over(program: Program, transport: str) -> None:
    options = ["--job", "taken", "--iterations", "400", "--transport", transport]
    with controller() as server, server.stub() as stub:
        with program.started("--controller", server.target, *options) as process:
            wait_for_line(process, "iteration 10:")
            taken = stub.CreateJob(CreateJobRequest(job="taken", membership=Membership(live_workers=WORKERS)))
            wait_for_line(process, "on fallback")
            rest, _ = process.communicate()
            assert process.returncode == 0
        assert "decisions of the controller again" not in rest
        stub.Report(ReportRequest(job="taken", session=taken.session))  # the job is there, with this session


def test_it_opens_another_stream_where_one_has_ended_without_an_error(program: Program) -> None:
    answers = []

    def end_streams(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        for data in itertools.islice(forward(requests), 10 if rpc == "Coordinate" else None):
            answers.append(rpc)
            yield data

    with controller() as server, proxied(server.target, end_streams) as target:
        done = program.run("--controller", target, "--iterations", "30", "--transport", "stream")
    assert done.returncode == 0, done.stderr
    assert answers.count("Coordinate") > 10


@by_both_transports
def test_it_pauses_before_it_attaches_again_where_it_has_got_no_answer(program: Program, transport: str) -> None:
    calls: Counter[str] = Counter()

    def answer_nothing(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        calls[rpc] += 1
        if rpc in ("Coordinate", "EndIteration"):
            raise RefusalError(grpc.StatusCode.UNAVAILABLE, "the connection is lost")
        yield from forward(requests)

    with controller() as server, proxied(server.target, answer_nothing) as target:
        done = program.run("--controller", target, "--iterations", "30", "--transport", transport)
    assert done.returncode == 0, done.stderr
    assert 1 < calls["CreateJob"] < 30, "and not several times an iteration"


@by_both_transports
def test_it_leaves_no_job_if_training_ends_while_it_attaches_again(program: Program, transport: str) -> None:
    lost, options = LostConnection(), ["--workers", "1", "--iterations", "60", "--transport", transport]
    with controller() as server, proxied(server.target, lost) as target:
        with program.started("--controller", target, *options) as process:
            wait_for_line(process, "60 iterations")
            lost.may_come.set()
            assert process.wait() == 0
        with server.stub() as stub:
            assert not stub.ListJobs(ListJobsRequest()).jobs


def test_it_ends_an_iteration_at_its_deadline(program: Program) -> None:
    # A quarter of the workers takes longer than that.
    with controller() as server, deciding(server.target, WORKERS, 0.03) as target, recorded(target) as seen:
        done = program.run("--controller", seen.target, "--job", "example", "--iterations", "10")
    assert done.returncode == 0, done.stderr
    _, *others = seen.job("example").summaries
    late = [s for s in others if s.HasField("decision_iteration") and s.decision_iteration == 0]
    ends = {(summary.k < WORKERS, summary.end_cause) for summary in others if summary not in late}
    assert ends == {(True, END_CAUSE_DEADLINE)}


def test_it_goes_on_and_ends_while_slow_workers_hang_for_good(program: Program) -> None:
    with controller() as server, deciding(server.target, WORKERS, 0.1) as target, recorded(target) as seen:
        flags = ("--controller", seen.target, "--job", "example", "--iterations", "30")
        done = program.run(*flags, **program.hanging)
    assert done.returncode == 0, done.stderr
    hung = [summary for summary in seen.job("example").summaries if summary.k <= WORKERS - SLOW]
    assert len(hung) > 10
    assert {summary.end_cause for summary in hung} == {END_CAUSE_DEADLINE}


def test_it_ends_iterations_at_the_last_deadline_while_the_controller_is_gone(program: Program) -> None:
    with controller() as server, deciding(server.target, WORKERS, 0.03, last=5) as target:
        done = program.run("--controller", target, "--iterations", "40")
    assert done.returncode == 0, done.stderr
    assert "on fallback, k = 8" in done.stderr
    assert re.search(r"^iteration 39: k = [1-7],", done.stdout, re.MULTILINE), done.stdout


def test_it_goes_on_without_a_controller(program: Program) -> None:
    done = program.run("--controller", "127.0.0.1:1", "--iterations", "5")
    assert done.returncode == 0, done.stderr
    assert " 5 iterations without a decision" in done.stdout


@pytest.mark.parametrize("options", [("--workers", "0"), ("--transport", "pigeon"), ("--unknown", "1")])
def test_wrong_usage_is_refused(program: Program, options: tuple[str, str]) -> None:
    done = program.run(*options)
    assert done.returncode == 2
    assert options[0] in done.stderr
