"""What the chart tells containers to run, run here: real programs, with the commands and options of the manifests."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trustme

from tests.charts.chart import container, environment, needs_helm, render
from tests.charts.options import CHART
from tests.servers import PATIENCE, controller

pytestmark = needs_helm
Process = subprocess.Popen[str]
DECISION = CHART / "files/decision.py"


def free_address() -> str:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def replaced(text: str, here: Mapping[str, str]) -> str:
    """With what differs between a pod and this machine replaced."""
    for old, new in here.items():
        text = text.replace(old, new)
    return text


def variables(name: str, here: Mapping[str, str], values: str, *settings: str) -> dict[str, str]:
    """The environment of a container, here."""
    rendered = environment(name, render(values, *settings))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        **{key: replaced(value, here) for key, value in rendered.items() if isinstance(value, str)},
        "PATH": path,
    }


@contextmanager
def running(name: str, here: Mapping[str, str], *settings: str, values: str = "default") -> Iterator[Process]:
    """A container of the chart as a process."""
    what = container(name, render(values, *settings))
    command = [*what.get("command", ["dbw", "controller"]), *what.get("args", [])]
    surroundings = variables(name, here, values, *settings)
    process = subprocess.Popen(command, env=surroundings, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=PATIENCE)


def wait_for_log(process: Process, message: str) -> None:
    """Read what a process logs, up to a message."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith("{") and json.loads(line)["message"].startswith(message):
            return
    raise AssertionError(f"no {message!r} in {seen}")


@pytest.fixture
def here(tmp_path: Path) -> dict[str, str]:
    """What is elsewhere in a pod: addresses of Services and of the pod, and the volume."""
    serving, deciding = free_address(), free_address()
    return {
        "try-dbw-ps:50052": serving,
        "0.0.0.0:50052": serving,
        "try-dbw-controller:50051": deciding,
        "0.0.0.0:50051": deciding,
        **{f"0.0.0.0:{port}": "127.0.0.1:0" for port in (9464, 9465, 9466)},
        "/var/lib/dbw": str(tmp_path),
        "/etc/dbw": str(tmp_path),
    }


def test_a_training_of_the_chart_comes_to_its_end_with_0(here: dict[str, str], tmp_path: Path) -> None:
    goal = ("ps.options.iterations=20", "ps.options.min_workers=2", "ps.options.linger_seconds=5")
    settings = (*goal, "worker.options.threads=1")
    with ExitStack() as stack:
        decider = stack.enter_context(running("try-dbw-controller", here))
        wait_for_log(decider, "ready")
        server = stack.enter_context(running("try-dbw-ps", here, *settings))
        ids = [{"$(WORKER_INDEX)": str(index)} for index in range(2)]
        workers = [stack.enter_context(running("try-dbw-worker", {**here, **own}, *settings)) for own in ids]
        logs = server.communicate(timeout=PATIENCE)[1]
        assert server.returncode == 0, logs
        assert [worker.wait(PATIENCE) for worker in workers] == [0, 0]
        assert "worker-0" in logs
        assert "worker-1" in logs
    assert list((tmp_path / "checkpoints").glob("*20.pt"))
    with running("try-dbw-ps", here, *settings) as again:  # as after an eviction in the last moment
        assert again.wait(PATIENCE) == 0


def test_a_job_that_is_told_to_stop_does_not_look_complete(here: dict[str, str]) -> None:
    with running("try-dbw-ps", here) as server, running("try-dbw-worker", here) as worker:
        wait_for_log(server, "ready")
        wait_for_log(worker, "ready")
        for process in (worker, server):
            process.send_signal(signal.SIGTERM)
        assert [process.wait(PATIENCE) for process in (worker, server)] == [143, 143]
        assert server.stderr is not None
        assert '"stopped"' in server.stderr.read()  # it had the time to come to its end


def test_a_job_ends_with_the_exit_code_of_its_program(here: dict[str, str]) -> None:
    with running("try-dbw-ps", here, "model=no_such_module:build") as server:
        assert server.wait(PATIENCE) == 2


def run_decision(**variables: str) -> "subprocess.CompletedProcess[str]":
    """Run the program of `helm test`, as its pod does."""
    command = [sys.executable, "-c", DECISION.read_text()]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)


def keep_secrets(folder: Path) -> None:
    """What the secrets of certificates and tokens hold, in a folder."""
    for name in ("tls", "tokens"):
        (folder / name).mkdir()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "tls/ca.crt")
    certificate = authority.issue_cert("try-dbw-controller.somewhere", "localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "tls/tls.key")
    certificate.cert_chain_pems[0].write_to_path(folder / "tls/tls.crt")
    (folder / "tokens/controller-identities").write_text("training 3f9c\n")
    (folder / "tokens/controller-token").write_text("3f9c\n")


@pytest.mark.parametrize("values", ["default", "tls", "mutual-tls", "tokens"])
def test_probe_operator_and_test_reach_a_controller_of_the_chart(
    values: str, here: dict[str, str], tmp_path: Path
) -> None:
    keep_secrets(tmp_path)
    here["localhost:50051"] = here["try-dbw-controller:50051"]  # what operators ask in the pod

    def run(command: list[str], whose: str) -> "subprocess.CompletedProcess[str]":
        surroundings = variables(whose, here, values)
        return subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=PATIENCE, check=False)

    with running("try-dbw-controller", here, values=values) as server:
        wait_for_log(server, "ready")
        probe = container("try-dbw-controller", render(values))["livenessProbe"].get("exec", {}).get("command")
        if probe is not None:
            asked = run([replaced(word, here) for word in probe], "try-dbw-controller")
            assert asked.returncode == 0, asked.stderr
        jobs = run(["dbw", "jobs"], "try-dbw-controller")
        assert jobs.returncode == 0, jobs.stderr
        decision = run([sys.executable, "-c", DECISION.read_text()], "try-dbw-test")
        assert decision.returncode == 0, decision.stderr
        assert re.search("decided: wait for [1-4] of 4 workers", decision.stdout)


def test_the_pod_of_helm_test_runs_the_program_that_is_tested_here() -> None:
    assert container("try-dbw-test", render())["args"][0].strip() == DECISION.read_text().strip()


def test_helm_test_gets_a_decision_and_leaves_nothing_behind() -> None:
    with controller() as server:
        done = run_decision(DBW_CLIENT_CONTROLLER=server.target)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{server.target} decided: wait for 4 of 4 workers\n"
        assert "\ndbw_jobs 0.0" in server.metrics()


def test_helm_test_fails_without_a_controller() -> None:
    address = free_address()
    done = run_decision(DBW_CLIENT_CONTROLLER=address, PYTHONWARNINGS="ignore")
    assert done.returncode == 1
    assert f"{address} made no decision" in done.stderr
