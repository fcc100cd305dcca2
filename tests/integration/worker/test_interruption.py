"""What a late worker does (paper, Section 2): drops its gradient between two layers, or finishes it and says so."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.worker.gated import Heartbeats, computed, open_gate, work_of, write_model
from tests.proxy import proxied
from tests.servers import ParameterServer, Worker, parameter_server, wait_until, worker
from tests.workers import Pace, working

FORWARD, BACKWARD = [f"forward {i}" for i in range(4)], [f"backward {i}" for i in (3, 2, 1, 0)]
SERVER = ("--policy", "static:1", "--min-workers", "2", "--worker-timeout", "60")


@contextmanager
def standing_still(
    folder: Path, stop: str, *flags: str
) -> Iterator[tuple[ParameterServer, Worker, Callable[[], None]]]:
    """A worker that stands still in its first gradient, and what makes this gradient late and tells the worker so."""
    model, pace, heartbeats = write_model(folder, stop, FORWARD[0]), Pace(0), Heartbeats()
    with (
        parameter_server("--model", f"{model}:build", *SERVER, *flags) as server,
        proxied(server.target, heartbeats) as target,
        worker(target, "slow", *work_of(model)) as slow,
        working(server.target, 1, pace),
    ):
        wait_until(lambda: stop in computed(folder))

        def make_late() -> None:
            pace.until(1)
            heartbeats.wait_until_told(lambda answer: answer.version == 1)

        yield server, slow, make_late


@pytest.mark.parametrize(("stop", "expected"), [("forward 1", FORWARD[:2]), ("backward 2", [*FORWARD, *BACKWARD[:2]])])
def test_paper_newer_parameters_cut_a_computation_short_between_two_layers(
    stop: str, expected: list[str], tmp_path: Path
) -> None:
    with standing_still(tmp_path, stop, "--sync-mode", "push-interrupt") as (server, slow, make_late):
        make_late()
        assert computed(tmp_path) == expected
        open_gate(tmp_path)
        wait_until(lambda: len(computed(tmp_path)) > len(expected))
        assert computed(tmp_path) == [*expected, FORWARD[0]], "the next gradient, of the parameters that came"
        slow.wait_for_log("gradient: interrupted", version=0)
        assert slow.outcomes() == {"interrupted": 1}
        assert "dbw_worker_version 1.0" in slow.metrics()
        assert "dbw_worker_compute_seconds_count 0.0" in slow.metrics(), "it came to no end"
        assert 'dbw_ps_gradients_total{outcome="interrupted"} 1.0' in server.metrics()
        assert 'dbw_ps_gradients_total{outcome="late"}' not in server.metrics()


@pytest.mark.parametrize("mode", ["push-wait", "pull"])
@pytest.mark.parametrize("stop", ["forward 1", "backward 2"])
def test_paper_other_modes_compute_to_the_end_and_save_the_bytes_of_a_late_gradient(
    mode: str, stop: str, tmp_path: Path
) -> None:
    """Who pulls is told of newer parameters by heartbeats."""
    with standing_still(tmp_path, stop, "--sync-mode", mode) as (server, slow, make_late):
        make_late()
        received = received_bytes(server)
        open_gate(tmp_path)
        wait_until(lambda: len(computed(tmp_path)) > 8)
        assert computed(tmp_path) == [*FORWARD, *BACKWARD, FORWARD[0]]
        slow.wait_for_log("gradient: notified", version=0)
        assert slow.outcomes() == {"notified": 1}
        assert "dbw_worker_compute_seconds_count 1.0" in slow.metrics()
        assert 'dbw_ps_gradients_total{outcome="notified"} 1.0' in server.metrics()
        assert received_bytes(server) == received


def received_bytes(server: ParameterServer) -> str:
    return next(line for line in server.metrics().splitlines() if line.startswith("dbw_ps_received_bytes_total"))


def test_newer_parameters_cut_a_delay_short(tmp_path: Path) -> None:
    """One of a thousand seconds, over and over."""
    model, pace = write_model(tmp_path), Pace(0)
    with (
        parameter_server("--model", f"{model}:build", *SERVER, "--sync-mode", "push-interrupt") as server,
        worker(server.target, "slow", *work_of(model), "--delay", "constant:1000") as slow,
        working(server.target, 1, pace),
    ):
        for version in range(4):
            wait_until(lambda: len(computed(tmp_path)) == 8 * (version + 1))  # noqa: B023 (it is called here)
            pace.until(version + 1)
            slow.wait_for_log("gradient: interrupted", version=version)
        assert slow.outcomes() == {"interrupted": 4}
    assert computed(tmp_path)[:32] == 4 * (FORWARD + BACKWARD), "each was computed before its delay"
