"""Examples that are programs of their own, in whatever language: how tests run them."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dbw.v1.controller_pb2 import CreateJobRequest, ReportRequest
from dbw.v1.iteration_pb2 import Membership
from tests.examples.claims import assert_integrated
from tests.examples.recorder import recorded
from tests.servers import PATIENCE, controller

WORKERS, ITERATIONS = 8, 60


def assert_trains(program: Sequence[str], folder: Path, transport: str) -> None:
    """Assert that an example trains with a controller, by the stream or by single calls."""
    with controller() as server, recorded(server.target) as seen:
        command = [*program, "--controller", seen.target, "--job", "example", "--transport", transport]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        server.wait_for_log("deleted", job="example", learnt_iterations=ITERATIONS)
    assert " 0 iterations without a decision" in done.stdout
    job = seen.job("example")
    assert_integrated(job, WORKERS, ITERATIONS)
    late = {type(report).__name__ for report in job.reports if any(a in job.late for a in report.arrivals)}
    assert late >= {"CoordinateRequest" if transport == "stream" else "ReportRequest"}


def assert_survives_a_restart(program: Sequence[str], folder: Path, transport: str) -> None:
    """Assert that an example goes on without a controller, and finds it again when it is back."""
    with controller() as server:
        command = [*program, "--controller", server.target, "--iterations", "5000", "--transport", transport]
        with _started(command, folder) as output:
            _wait_for_line(output, "iteration 10:")
            server.kill()
            _wait_for_line(output, "on fallback")
            with controller("--listen", server.target):
                _wait_for_line(output, "decisions of the controller again")


def assert_leaves_a_job_that_was_taken_over(program: Sequence[str], folder: Path, transport: str) -> None:
    """Assert that an example does not fight for its job with another process that has created it anew."""
    with controller() as server, server.stub() as stub:
        command = [*program, "--controller", server.target, "--job", "taken", "--iterations", "400"]
        with _started([*command, "--transport", transport], folder) as output:
            _wait_for_line(output, "iteration 10:")
            taken = stub.CreateJob(CreateJobRequest(job="taken", membership=Membership(live_workers=WORKERS)))
            _wait_for_line(output, "on fallback")
            rest = output.readlines()
        assert not [line for line in rest if line.startswith("decisions of the controller again")]
        stub.Report(ReportRequest(job="taken", session=taken.session))  # the job is there, with this session


def assert_goes_on_without_a_controller(program: Sequence[str], folder: Path) -> None:
    """Assert that an example trains even if there is no controller at all."""
    command = [*program, "--controller", "127.0.0.1:1", "--iterations", "5"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert " 5 iterations without a decision" in done.stdout


def assert_refuses_wrong_usage(program: Sequence[str], folder: Path) -> None:
    """Assert that an example says what is wrong with its command line."""
    for options in (["--workers", "0"], ["--transport", "pigeon"], ["--unknown", "1"]):
        done = subprocess.run([*program, *options], cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 2
        assert options[0] in done.stderr


@contextmanager
def _started(command: list[str], folder: Path) -> Iterator[IO[str]]:
    """All that a program writes, while it runs; it is gone afterwards."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=folder, text=True, **pipes) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()


def _wait_for_line(lines: IO[str], begin: str) -> None:
    read = []
    for line in lines:
        if line.startswith(begin):
            return
        read.append(line)
    raise AssertionError(f"no line {begin!r} in {read}")
