"""A file system that is frozen takes no write and fails none: training goes on, and a server can be stopped."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbw_ps.training_log import read
from tests.disks import Disk, mounted_disk
from tests.ports import lasting_address
from tests.servers import parameter_server, wait_until
from tests.workers import TINY, Pace, newest, working


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted_disk(tmp_path) as disk:
        yield disk


def value(metrics: str, name: str) -> float:
    """The value of a metric without labels."""
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith(f"{name} "))


def is_free(port: int) -> bool:
    """Whether nobody listens on a port."""
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) != 0


def iterations(log: Path) -> list[int]:
    return [entry["iteration"] for entry in read(log)]


def flags(disk: Disk) -> tuple[str, ...]:
    """Of a server that writes often, and does not wait long at its end."""
    log, folder = disk.folder / "log", disk.folder / "checkpoints"
    kept = ("--checkpoint-dir", str(folder), "--checkpoint-iterations", "5", "--training-log", str(log), "--resume")
    return (*TINY, "--policy", "sync", *kept)


def test_training_goes_on_while_the_disk_hangs_and_everything_is_saved_afterwards(disk: Disk) -> None:
    pace = Pace(10)
    with parameter_server(*flags(disk)) as server, working(server.target, 2, pace) as (worker, _):
        worker.wait_for(10)
        with disk.hanging():
            pace.until(300)
            worker.wait_for(300)  # the server answers its workers all the time
            wait_until(lambda: value(server.metrics(), "dbw_ps_disk_busy_seconds") > 0)
        wait_until(lambda: value(server.metrics(), "dbw_ps_disk_busy_seconds") == 0)
        assert server.stop() == 0
    assert iterations(disk.folder / "log") == list(range(300))
    assert newest(disk.folder / "checkpoints")[0] == 300


def test_a_server_whose_disk_hangs_can_be_stopped_and_another_one_goes_on_from_its_last_checkpoint(disk: Disk) -> None:
    pace = Pace(10)
    seconds = ("--last-checkpoint-seconds", "0.5")
    address = ("--listen", lasting_address(), "--metrics-listen", lasting_address())
    with parameter_server(*flags(disk), *seconds, *address) as server, working(server.target, 2, pace) as (worker, _):
        worker.wait_for(10)
        with disk.hanging():
            pace.until(50)
            worker.wait_for(50)
            server.process.terminate()
            server.wait_for_log("stopped, but not all is saved", level="error")
            # The operating system keeps a process whose write hangs, but not its addresses.
            wait_until(lambda: is_free(server.port) and is_free(server.metrics_port))
        assert server.wait() == 1
        pace.until(100)
        with parameter_server(*flags(disk), *address) as again:
            worker.wait_for(100)
            assert again.stop() == 0
    assert iterations(disk.folder / "log") == list(range(100))
    assert newest(disk.folder / "checkpoints")[0] == 100
