"""docker-compose.yml on a real engine: a training that goes on whatever is killed, and one over mutual TLS."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.containers.engine import ROOT, Project, project
from tests.prometheus import needs_prometheus, needs_promtool, prometheus

WORKERS = 4
# Long enough to kill one after the other.
LONG = {"OPTIMIZER": "sgd:lr=0.01", "TARGET_LOSS": "0.8"}


def iteration(training: Project) -> float:
    return training.metric("ps", 9465, "dbw_ps_iteration") or 0.0


def advance(training: Project, by: int) -> None:
    begin = iteration(training)
    training.wait(lambda: iteration(training) >= begin + by)


def logged_iterations(training: Project) -> list[int]:
    """The iterations in the training's log, which is in the parameter server's volume."""
    read = ("run", "--rm", "--no-deps", "--entrypoint", "cat", "-T", "ps", "/var/lib/dbw/training/training.jsonl")
    return [json.loads(line)["iteration"] for line in training.compose(*read).splitlines() if line.startswith("{")]


def exit_codes(training: Project, service: str) -> list[int]:
    states = [training.state(container)["State"] for container in training.containers(service)]
    return [state["ExitCode"] for state in states if state["Status"] == "exited"]


def wait_for_the_end(training: Project) -> None:
    training.wait(lambda: exit_codes(training, "ps"))
    assert exit_codes(training, "ps") == [0], training.logs()
    training.wait(lambda: len(exit_codes(training, "worker")) == WORKERS)
    assert exit_codes(training, "worker") == [0] * WORKERS, training.logs()


def test_training_reaches_its_target_though_each_service_is_killed() -> None:
    with project("dbw-test-faults", **LONG) as training:
        training.compose("up", "--detach", "--no-build")
        training.wait(lambda: training.metric("ps", 9465, "dbw_ps_live_workers") == WORKERS)
        advance(training, 20)

        training.crash(training.containers("controller")[0])
        advance(training, 20)
        training.wait(lambda: training.metric("ps", 9465, "dbw_ps_fallback") == 0)
        assert "restored" in training.compose("logs", "--no-color", "controller")

        training.crash(training.containers("worker")[0])
        advance(training, 20)
        training.wait(lambda: training.metric("ps", 9465, "dbw_ps_live_workers") == WORKERS)

        before = iteration(training)
        training.crash(training.containers("ps")[0])
        training.wait(lambda: iteration(training) > before)
        wait_for_the_end(training)

        iterations = logged_iterations(training)
        assert iterations == list(range(len(iterations)))


def test_mutual_tls_is_one_more_file() -> None:
    with project("dbw-test-mtls", "docker-compose.mtls.yml") as training:
        training.compose("up", "--detach", "--no-build")
        training.wait(lambda: iteration(training) > 0)
        ask = ("exec", "-T", "controller", "dbw", "health", "controller:50051")
        training.compose(*ask)
        with pytest.raises(AssertionError, match="UNAVAILABLE"):  # without a certificate
            training.compose(*ask[:2], "--env", "DBW_CLIENT_TLS_CERT=", "--env", "DBW_CLIENT_TLS_KEY=", *ask[2:])
        wait_for_the_end(training)


def test_workers_can_be_scaled() -> None:
    with project("dbw-test-scale", MIN_WORKERS="2", TARGET_LOSS="") as training:
        training.compose("up", "--detach", "--no-build", "--scale", "worker=2")
        training.wait(lambda: training.metric("ps", 9465, "dbw_ps_live_workers") == 2)
        assert training.running() == ["controller", "ps", "worker", "worker"]  # and nothing of any profile
        training.compose("up", "--detach", "--no-build", "--scale", "worker=3")
        training.wait(lambda: training.metric("ps", 9465, "dbw_ps_live_workers") == 3)


@needs_prometheus
def test_prometheus_gets_all_series(tmp_path: Path) -> None:
    with project("dbw-test-series", TARGET_LOSS="") as training:
        training.compose("up", "--detach", "--no-build")
        advance(training, 20)
        targets = {"dbw-controller": [training.port("controller", 9464)], "dbw-ps": [training.port("ps", 9465)]}
        with prometheus(tmp_path, targets) as server:
            training.wait(lambda: server.query('dbw_selected_k{dbw_job="training"}'))
            training.wait(lambda: server.query("dbw_ps_live_workers") == [WORKERS])
            training.wait(lambda: len(server.query("rate(dbw_worker_arrival_seconds_count[1m]) > 0")) == WORKERS)


@pytest.mark.parametrize("overlays", [(), ("docker-compose.mtls.yml",)])
def test_profiles_are_valid(overlays: tuple[str, ...]) -> None:
    everything = Project("dbw-test-profiles", *overlays)
    described = everything.compose("--profile", "gpu", "--profile", "monitoring", "config")
    for service in ("worker-gpu", "prometheus", "grafana"):
        assert f"  {service}:\n" in described


def test_data_sets_are_put_where_workers_look_for_them() -> None:
    with project("dbw-test-data") as training:
        get = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "dbw", "worker", "data", "get", "digits")
        assert "/var/lib/dbw/data/digits.npz" in training.compose(*get)


@needs_promtool
def test_prometheus_takes_its_configuration() -> None:
    command = ["promtool", "check", "config", str(ROOT / "docker/prometheus/prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
