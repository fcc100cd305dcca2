"""Examples that are programs of their own, in whatever language: how tests run them."""

import itertools
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dbw.v1.controller_pb2 import CoordinateResponse, CreateJobRequest, ReportRequest
from dbw.v1.iteration_pb2 import Membership
from tests.examples.claims import assert_integrated
from tests.examples.recorder import recorded
from tests.proxy import Forward, proxied
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
        with _started(command, folder) as process:
            _wait_for_line(process, "iteration 10:")
            server.kill()
            _wait_for_line(process, "on fallback")
            with controller("--listen", server.target):
                _wait_for_line(process, "decisions of the controller again")


def assert_survives_streams_that_end(program: Sequence[str], folder: Path) -> None:
    """Assert that an example goes on and opens another stream where one has ended without an error."""

    def end_streams(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        return itertools.islice(forward(requests), 10 if rpc == "Coordinate" else None)

    # An iteration takes 10 ms at least, and so these are enough for the pause after a failure, which takes 2 s.
    command = [*program, "--iterations", "250", "--transport", "stream"]
    with controller() as server, proxied(server.target, end_streams) as target:
        command += ["--controller", target]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "the controller has ended the stream" in done.stderr
    assert "decisions of the controller again" in done.stderr


def assert_survives_a_frozen_controller(program: Sequence[str], folder: Path, transport: str) -> None:
    """Assert that an example goes on and ends if the controller says nothing any more."""
    with controller() as server:
        command = [*program, "--controller", server.target, "--iterations", "200", "--transport", transport]
        with _started(command, folder) as process:
            _wait_for_line(process, "iteration 10:")
            server.process.send_signal(signal.SIGSTOP)
            _wait_for_line(process, "on fallback")
            _wait_for_line(process, "200 iterations")
            assert process.wait() == 0


def assert_waits_for_one_worker_to_all(program: Sequence[str], folder: Path) -> None:
    """Assert that an example waits neither for no gradient nor for more than there can be, whatever is decided."""
    command = [*program, "--iterations", "10", "--transport", "stream"]
    for decided, taken in (0, 1), (1000, WORKERS):

        def decide(rpc: str, requests: Iterator[bytes], forward: Forward, k: int = decided) -> Iterator[bytes]:
            for data in forward(requests):
                if rpc == "Coordinate":
                    response = CoordinateResponse.FromString(data)
                    response.decision.k = k
                    yield response.SerializeToString()
                else:
                    yield data

        with controller() as server, proxied(server.target, decide) as target:
            options = ["--controller", target]
            done = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert f"iteration 9: k = {taken}," in done.stdout


def assert_leaves_a_job_that_was_taken_over(program: Sequence[str], folder: Path, transport: str) -> None:
    """Assert that an example does not fight for its job with another process that has created it anew."""
    with controller() as server, server.stub() as stub:
        command = [*program, "--controller", server.target, "--job", "taken", "--iterations", "400"]
        with _started([*command, "--transport", transport], folder) as process:
            _wait_for_line(process, "iteration 10:")
            taken = stub.CreateJob(CreateJobRequest(job="taken", membership=Membership(live_workers=WORKERS)))
            _wait_for_line(process, "on fallback")
            rest, _ = process.communicate()
            assert process.returncode == 0
        assert "decisions of the controller again" not in rest
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
def _started(command: list[str], folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A program that runs, and writes all to its output; it is gone afterwards, or when it takes too long."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=folder, text=True, **pipes) as process:
        out_of_patience = threading.Timer(PATIENCE, process.kill)
        out_of_patience.start()
        try:
            yield process
        finally:
            out_of_patience.cancel()
            process.kill()


def _wait_for_line(process: "subprocess.Popen[str]", begin: str) -> None:
    assert process.stdout is not None
    read = []
    for line in process.stdout:
        if line.startswith(begin):
            return
        read.append(line)
    raise AssertionError(f"no line {begin!r} in {read}")
