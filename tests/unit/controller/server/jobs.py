"""Served jobs, stores and clocks for tests of the server's parts."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

from dbw_controller.server.saver import Disk
from dbw_controller.server.served_job import ServedJob
from dbw_controller.server.store import SnapshotStore
from tests.jobs import new_job
from tests.simulation.loop import DiskHangsError, VirtualLoop


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def run(claims: Coroutine[Any, Any, None]) -> None:
    """Run claims on a virtual clock: what they wait for takes no time, whether they sleep or a disk hangs."""
    loop = VirtualLoop(Random(0))  # type: ignore[abstract] # asyncio needs no more than it has
    claimed = loop.spawn(None, claims)
    loop.run(claimed, lambda: None)
    claimed.result()
    assert not loop.problems


def virtual_clock() -> float:
    """The time of the running loop."""
    return asyncio.get_running_loop().time()


class Store(SnapshotStore):
    """A store whose disk can fail or, on a virtual clock, hang or be slow, and that remembers what was written."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fails = False
        self.hangs_until = 0.0
        self.seconds = 0.0  # that each write and deletion takes
        self._done_at: float | None = None  # what is under way
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
        if self.hangs_until and virtual_clock() < self.hangs_until:
            raise DiskHangsError(self.hangs_until)
        if self.seconds and self._done_at is None:
            self._done_at = virtual_clock() + self.seconds
            raise DiskHangsError(self._done_at)
        self._done_at = None


def served_job(disk: Disk | None = None, name: str = "resnet") -> ServedJob:
    """A job that was just created."""
    return ServedJob(name, "alice", new_job(), disk or Disk(None, 100), wall_clock=lambda: 1.0)
