"""Servers and workers that come back, and servers that do not."""

import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from dbw_ps.client import LinkError, Parameters
from dbw_ps.client import ParameterServer as Link
from dbw_ps.training_log import read
from dbw_runtime.channel import Connection
from tests.integration.worker.gated import Heartbeats, computed, open_gate, work_of, write_model
from tests.ports import lasting_address
from tests.proxy import proxied
from tests.servers import PATIENCE, TINY_WORK, ParameterServer, parameter_server, wait_until, worker
from tests.workers import Pace, working

TINY = ("--model", "tests.models:tiny", "--policy", "sync")


def numbers(server: ParameterServer) -> dict[str, int]:
    return {one.worker_id: one.worker for one in server.status().workers}


@pytest.mark.parametrize("mode", ["push-wait", "push-interrupt", "pull"])
def test_workers_outlive_a_server_that_is_killed_and_keep_their_numbers(mode: str, tmp_path: Path) -> None:
    folder, log = tmp_path / "checkpoints", tmp_path / "log"
    kept = ("--checkpoint-dir", str(folder), "--checkpoint-iterations", "1", "--training-log", str(log))
    flags = (*TINY, *kept, "--sync-mode", mode, "--min-workers", "2")
    with ExitStack() as stack:
        server = stack.enter_context(parameter_server(*flags, "--listen", lasting_address()))
        ids = ("one", "two")
        workers = [stack.enter_context(worker(server.target, id_, *TINY_WORK, "--delay", "exp:0.01")) for id_ in ids]
        wait_until(lambda: server.status().checkpoint_iteration >= 5)
        before = numbers(server)
        assert sorted(before.values()) == [0, 1]
        server.kill()
        end = max(entry["iteration"] for entry in read(log)) + 20
        again = ("--listen", server.target, "--resume", "--iterations", str(end))
        second = stack.enter_context(parameter_server(*flags, *again))
        wait_until(lambda: second.status().live_workers == 2)
        assert numbers(second) == before
        assert [one.wait() for one in (second, *workers)] == [0, 0, 0]
        for one in workers:
            assert [line["worker"] for line in one.logs if line["message"] == "joined"] == 2 * [before[one.id]]
            assert len([line for line in one.logs if line["level"] == "warning"]) == 1, "it says once what happened"
    assert [entry["iteration"] for entry in read(log)] == list(range(end))
    assert {entry["k"] for entry in read(log)} == {2}


def test_a_worker_that_timed_out_comes_back_under_its_number() -> None:
    with (
        parameter_server(*TINY, "--min-workers", "2", "--worker-timeout", "1") as server,
        worker(server.target, "one", *TINY_WORK, "--delay", "constant:0.01"),
        worker(server.target, "two", *TINY_WORK, "--delay", "constant:0.01") as two,
    ):

        def used() -> int:
            return sum(one.used_gradients for one in server.status().workers if one.worker_id == "two")

        wait_until(lambda: used() > 3)
        two.process.send_signal(signal.SIGSTOP)
        server.wait_for_log("worker timed out", worker_id="two")
        wait_until(lambda: server.status().k == 1)
        before, number = used(), two.number
        two.process.send_signal(signal.SIGCONT)
        wait_until(lambda: used() > before + 3)
        wait_until(lambda: server.status().k == 2)
        joined = [line["worker"] for line in two.logs if line["message"] == "joined"]
        assert len(joined) >= 2, "on a busy machine it may time out by itself, too"
        assert set(joined) == {number}
        assert two.stop() == 0


@pytest.mark.parametrize("mode", ["push-wait", "pull"])
def test_a_worker_that_was_told_that_training_is_over_needs_no_server_to_end(mode: str, tmp_path: Path) -> None:
    """Its gradient took longer than the server had patience with it."""
    model, pace, heartbeats = write_model(tmp_path, "forward 1"), Pace(0), Heartbeats()
    flags = ("--policy", "static:1", "--min-workers", "2", "--iterations", "1")
    with (
        parameter_server("--model", f"{model}:build", "--sync-mode", mode, *flags) as server,
        proxied(server.target, heartbeats) as target,
        worker(target, "slow", *work_of(model)) as slow,
        working(server.target, 1, pace) as (fast,),
    ):
        wait_until(lambda: "forward 1" in computed(tmp_path))
        pace.until(1)
        fast.join()
        heartbeats.wait_until_told(lambda answer: answer.finished)
        server.kill()
        open_gate(tmp_path)
        assert slow.wait() == 0


def test_patience_ends_whether_the_server_never_was_there_or_is_gone_for_good() -> None:
    with parameter_server("--model", "tests.models:tiny", "--min-workers", "2") as server:
        impatient = (*TINY_WORK, "--patience", "1")
        nowhere = lasting_address()
        with worker(nowhere, "never", *impatient) as never, worker(server.target, "gone", *impatient) as gone:
            gone.wait_for_log("joined")
            server.kill()
            for one, target in ((never, nowhere), (gone, server.target)):
                assert one.wait() == 1
                text = f"dbw worker: the parameter server {target} could not be reached for 1 s: UNAVAILABLE"
                assert one.other_output[-1].startswith(text)
            never.wait_for_log(f"the parameter server {nowhere} cannot be reached, trying again; does it run")
            gone.wait_for_log(f"the parameter server {server.target} was lost, joining again")


def test_patience_begins_anew_when_a_server_was_there_again() -> None:
    """Also if it has sent no parameters, because it waits for more workers."""
    now = 0.0
    flags = (*TINY, "--min-workers", "2", "--listen", lasting_address())
    found: list[Parameters | LinkError | None] = []
    with ExitStack() as stack:
        link = Link(Connection(flags[-1]), "patient", patience=10.0, clock=lambda: now)

        def wait() -> None:
            try:
                found.append(link.newer(None))
            except LinkError as error:
                found.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        wait_until(lambda: link._lost_at is not None)
        server = stack.enter_context(parameter_server(*flags))
        wait_until(lambda: server.status().live_workers == 1)
        now = 100.0
        server.kill()
        server = stack.enter_context(parameter_server(*flags))
        wait_until(lambda: found or server.status().live_workers == 1)
        assert not found
        stack.enter_context(working(server.target, 1))
        thread.join(PATIENCE)
        assert isinstance(found[0], Parameters)
        link.close()
