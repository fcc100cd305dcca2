"""Workers that stand still while their process lives: nobody waits for them, and everybody is told."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import torch

from dbw.v1 import parameter_server_pb2 as pb
from tests.programs import dbw
from tests.servers import PATIENCE, ParameterServer, Worker, parameter_server, wait_until, worker
from tests.workers import Rogue, heartbeats, working

SYNC = ("--model", "tests.models:tiny", "--policy", "sync", "--min-workers", "2", "--worker-timeout", "10")
DATA = """
import os
from torch.utils.data import Dataset

from tests import models

SERVED = 0


class Examples(Dataset):
    def __init__(self):
        self.examples = models.examples()

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        global SERVED
        SERVED += 1
        if SERVED > 16 * 8 and not os.path.exists({flag!r}):
            open({gate!r}).close()  # a pipe: waits until somebody opens its other end
        return self.examples[index]
"""
WORK = ("--model", "tests.models:tiny", "--batch-size", "16")


def write_data(folder: Path) -> tuple[str, Callable[[], None]]:
    """A data set that blocks after a few mini-batches; returns its place, and what lets it go on for good."""
    gate, flag, path = folder / "gate", folder / "open", folder / "data.py"
    os.mkfifo(gate)
    path.write_text(DATA.format(gate=str(gate), flag=str(flag)))

    def open_gate() -> None:
        flag.touch()
        with gate.open("w"):
            pass

    return f"{path}:Examples", open_gate


def status_of(server: ParameterServer, id_: str) -> pb.WorkerStatus:
    return next(one for one in server.status().workers if one.worker_id == id_)


def health_of(process: Worker) -> tuple[int, str]:
    """What its probe gets to see."""
    process.metrics()  # waits until it has a port
    try:
        with urlopen(f"http://127.0.0.1:{process.metrics_port}/healthz", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def value_of(process: ParameterServer | Worker, series: str) -> float:
    line = next(line for line in process.metrics().splitlines() if line.startswith(f"{series} "))
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize("mode", ["push-wait", "push-interrupt", "pull"])
def test_a_worker_whose_data_set_blocks_is_stalled_until_it_goes_on(mode: str, tmp_path: Path) -> None:
    data, open_gate = write_data(tmp_path)
    with (
        parameter_server(*SYNC, "--sync-mode", mode) as server,
        worker(server.target, "hung", *WORK, "--dataset", data, "--hung-after", "0.1") as hung,
        working(server.target, 1) as (well,),
    ):
        line = server.wait_for_log("worker stalled", worker_id="hung")
        version = line["version"]
        well.wait_for(version + 20)  # for which nobody waits for the other one
        status, hanging = server.status(), status_of(server, "hung")
        assert (status.live_workers, status.stalled_workers, status.k) == (1, 1, 1)
        assert (hanging.stalled, hanging.live) == (True, False)
        assert hanging.computing_seconds > 1
        assert value_of(server, "dbw_ps_stalled_workers") == 1
        assert value_of(server, "dbw_ps_given_up_workers_total") == 0, "its session goes on"
        assert value_of(hung, "dbw_worker_computing_seconds") > 1
        wait_until(lambda: health_of(hung)[0] == 503)
        assert "the computation of a gradient hangs" in health_of(hung)[1]
        asked = dbw("health", f"http://127.0.0.1:{hung.metrics_port}/healthz").run()
        assert asked.returncode == 1
        assert "503: the computation of a gradient hangs" in asked.stderr
        open_gate()
        server.wait_for_log("worker is no longer stalled", worker_id="hung")
        used = status_of(server, "hung").used_gradients
        wait_until(lambda: status_of(server, "hung").used_gradients > used + 3)
        wait_until(lambda: server.status().k == 2)
        assert [line["worker"] for line in hung.logs if line["message"] == "joined"] == [hung.number]
        wait_until(lambda: health_of(hung) == (200, "healthy\n"))


def test_a_worker_that_has_parameters_and_does_nothing_is_not_waited_for() -> None:
    """Its program hangs between two gradients, so that its heartbeats say that it computes nothing."""
    with (
        parameter_server(*SYNC) as server,
        Rogue(server.target) as rogue,
        heartbeats(rogue),
        working(server.target, 1) as (well,),
    ):
        stream = rogue.stub.Subscribe(pb.SubscribeRequest(session=rogue.session), timeout=PATIENCE)
        for version in range(3):
            assert next(stream).header.version == version
            rogue.push_gradient(version, torch.ones(39), compute_seconds=0.01)
        assert server.wait_for_log("worker stalled", worker_id="rogue")["version"] == 3
        well.wait_for(20)
        assert status_of(server, "rogue").stalled
        rogue.push_gradient(3, torch.ones(39), compute_seconds=0.01)
        server.wait_for_log("worker is no longer stalled", worker_id="rogue")
        stream.cancel()


def test_where_all_are_stalled_the_iteration_waits_for_the_first(tmp_path: Path) -> None:
    data, open_gate = write_data(tmp_path)
    with (
        parameter_server(*SYNC, "--min-workers", "1") as server,
        worker(server.target, "hung", *WORK, "--dataset", data) as hung,
    ):
        server.wait_for_log("worker stalled", worker_id="hung")
        status = server.status()
        assert (status.live_workers, status.stalled_workers) == (0, 1)
        assert health_of(hung) == (200, "healthy\n"), "half an hour would be too long"
        open_gate()
        wait_until(lambda: server.status().iteration > status.iteration + 5)
        assert server.status().live_workers == 1


def test_a_worker_that_is_merely_slow_is_waited_for_beyond_the_time_out() -> None:
    """Its gradients take longer than the time-out of workers; the other one's take no time."""
    with (
        parameter_server(*SYNC) as server,
        worker(server.target, "slow", *WORK, "--dataset", "tests.models:examples", "--delay", "constant:11"),
        working(server.target, 1) as (fast,),
    ):
        fast.wait_for(3)
        assert not [line for line in server.logs if line["message"] == "worker stalled"]
        assert status_of(server, "slow").used_gradients >= 3
        assert server.status().k == 2


def test_a_process_that_is_frozen_times_out_though_parameters_are_sent_to_it() -> None:
    """Others go on, so that there are newer ones all the time."""
    flags = ("--model", "tests.models:tiny", "--policy", "static:1", "--min-workers", "2", "--worker-timeout", "2")
    with (
        parameter_server(*flags) as server,
        worker(server.target, "frozen", *WORK, "--dataset", "tests.models:examples") as frozen,
        working(server.target, 1) as (well,),
    ):
        server.wait_for_log("a worker has joined", worker_id="frozen")
        wait_until(lambda: status_of(server, "frozen").version > 5)
        frozen.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not status_of(server, "frozen").live)
        server.wait_for_log("worker timed out", worker_id="frozen")
        frozen.process.send_signal(signal.SIGCONT)
        wait_until(lambda: status_of(server, "frozen").live)
        well.wait_for(max(well.seen) + 5)
