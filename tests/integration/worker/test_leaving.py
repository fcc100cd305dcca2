"""A worker that is told to stop leaves at once, whatever it does, so that nobody waits for it."""

import signal
from pathlib import Path

import pytest

from tests import servers
from tests.integration.worker.gated import computed, open_gate, work_of, write_model
from tests.servers import TINY_WORK, parameter_server, wait_until, worker

MODES = ["push-wait", "push-interrupt", "pull"]


@pytest.mark.parametrize("mode", MODES)
def test_in_the_middle_of_a_delay(mode: str, tmp_path: Path) -> None:
    model = write_model(tmp_path)
    with (
        parameter_server("--model", f"{model}:build", "--sync-mode", mode) as server,
        worker(server.target, "late", *work_of(model), "--delay", "constant:1000") as late,
    ):
        wait_until(lambda: computed(tmp_path)[-1:] == ["backward 0"])
        assert late.stop() == 0
        server.wait_for_log("a worker has left: stopped", worker_id="late")
        assert server.status().live_workers == 0
        assert late.other_output == []


@pytest.mark.parametrize("mode", MODES)
def test_while_it_waits_for_parameters(mode: str) -> None:
    flags = ("--model", "tests.models:tiny", "--sync-mode", mode, "--min-workers", "2")
    with parameter_server(*flags) as server, worker(server.target, "idle", *TINY_WORK) as idle:
        idle.wait_for_log("joined")
        assert idle.stop() == 0
        server.wait_for_log("a worker has left: stopped", worker_id="idle")
        assert idle.other_output == []


def test_while_it_waits_for_a_server() -> None:
    with parameter_server("--model", "tests.models:tiny") as server:
        target = server.target
    with worker(target, "alone", *TINY_WORK) as alone:
        alone.wait_for_log("the parameter server")
        assert alone.stop() == 0
        assert alone.other_output == []


def test_while_the_server_stands_still() -> None:
    """It answers nothing, not even that the worker leaves."""
    flags = ("--model", "tests.models:tiny", "--min-workers", "2")
    with parameter_server(*flags) as server, worker(server.target, "alone", *TINY_WORK) as alone:
        alone.wait_for_log("joined")
        server.process.send_signal(signal.SIGSTOP)
        assert alone.stop() == 0
        assert alone.other_output == []


@pytest.mark.parametrize("stop", ["forward 1", "backward 2"])
def test_in_the_middle_of_a_gradient(stop: str, tmp_path: Path) -> None:
    """It leaves before the layer is done that it computes, and goes no further than that."""
    model = write_model(tmp_path, stop)
    with (
        parameter_server("--model", f"{model}:build") as server,
        worker(server.target, "busy", *work_of(model)) as busy,
    ):
        wait_until(lambda: stop in computed(tmp_path))
        before = computed(tmp_path)
        busy.process.terminate()
        server.wait_for_log("a worker has left: stopped", worker_id="busy")
        open_gate(tmp_path)
        assert busy.wait() == 0
        assert busy.other_output == []
    assert computed(tmp_path) == before


class Program(servers.Worker):
    """`dbw worker` itself."""

    module = "dbw_runtime.cli"
    usual_flags = ("worker", *servers.Worker.usual_flags)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_program_tells_how_it_ended(number: signal.Signals, code: int) -> None:
    flags = ("--model", "tests.models:tiny", "--min-workers", "2")
    with parameter_server(*flags) as server, servers.running(Program(server.target, "program", *TINY_WORK)) as program:
        program.wait_for_log("joined")
        program.process.send_signal(number)
        assert program.wait() == code
        server.wait_for_log("a worker has left: stopped", worker_id="program")
        assert program.other_output == []
