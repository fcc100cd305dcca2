"""Served jobs, stores and clocks for tests of the server's parts."""

from pathlib import Path

from dbw_controller.server.saver import Disk
from dbw_controller.server.served_job import ServedJob
from dbw_controller.server.store import SnapshotStore
from tests.jobs import new_job


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Store(SnapshotStore):
    """A store whose disk can fail, and that remembers what was written."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fails = False
        self.written: list[bytes] = []

    def write(self, name: str, data: bytes) -> None:
        """Write, or fail."""
        self._require_disk()
        self.written.append(data)
        super().write(name, data)

    def delete(self, name: str) -> None:
        """Delete, or fail."""
        self._require_disk()
        super().delete(name)

    def _require_disk(self) -> None:
        if self.fails:
            raise OSError("the disk is full")


def served_job(disk: Disk | None = None, name: str = "resnet") -> ServedJob:
    """A job that was just created."""
    return ServedJob(name, "alice", new_job(), disk or Disk(None, 100), created=1.0, updated=2.0)
