"""A file system that is frozen takes no write and fails none: training goes on, and a server can be stopped."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dbw_ps.training_log import read
from tests.servers import parameter_server, wait_until
from tests.workers import TINY, Pace, newest, working


def command(*words: str | Path) -> None:
    """Run something that only root may."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED: a disk that really hangs, because none can be made here: {words[0]}: {done.stderr}")


class Disk:
    """A small ext4 file system in a file."""

    def __init__(self, folder: Path) -> None:
        image, self.path = folder / "image", folder / "disk"
        self.path.mkdir()
        image.touch()
        command("truncate", "--size", "16M", image)
        command("mkfs.ext4", "-q", image)
        command("mount", "-o", "loop", image, self.path)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let every write hang meanwhile."""
        command("fsfreeze", "--freeze", self.path)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", self.path], check=True)

    def close(self) -> None:
        """Remove it."""
        subprocess.run(["umount", "--lazy", self.path], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        disk = Disk(tmp_path)
    except FileNotFoundError as error:
        pytest.skip(f"NOT TESTED: a disk that really hangs, because none can be made here: {error}")
    yield disk
    disk.close()


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
    log, folder = disk.path / "log", disk.path / "checkpoints"
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
    assert iterations(disk.path / "log") == list(range(300))
    assert newest(disk.path / "checkpoints")[0] == 300


def test_a_server_whose_disk_hangs_can_be_stopped_and_another_one_goes_on_from_its_last_checkpoint(disk: Disk) -> None:
    pace = Pace(10)
    seconds = ("--last-checkpoint-seconds", "0.5")
    with parameter_server(*flags(disk), *seconds) as server, working(server.target, 2, pace) as (worker, _):
        worker.wait_for(10)
        address = ("--listen", server.target, "--metrics-listen", f"127.0.0.1:{server.metrics_port}")
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
    assert iterations(disk.path / "log") == list(range(100))
    assert newest(disk.path / "checkpoints")[0] == 100
