"""Training never waits for the training log, and the log has every line as soon as its disk takes it."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from dbw_ps import log_writer
from dbw_ps.log_writer import LogWriter
from dbw_ps.training_log import TrainingLog, encode, read
from dbw_runtime.disk_watch import DiskWatch
from tests.servers import PATIENCE


class Disk(TrainingLog):
    """A training log on a disk that hangs, or fails, until it does not any more."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, resume_at=0)
        self.path, self.works, self.is_full = path, threading.Event(), False
        self.works.set()

    def write(self, line: bytes) -> bool:
        self.works.wait()
        return not self.is_full and super().write(line)

    def sync(self) -> bool:
        self.works.wait()
        return super().sync()

    @property
    def iterations(self) -> list[int]:
        """What is in the file."""
        return [entry["iteration"] for entry in read(self.path)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "log")
    yield disk
    disk.works.set()


Scenario = Callable[[LogWriter, DiskWatch], Coroutine[Any, Any, None]]


def run(disk: Disk, scenario: Scenario) -> None:
    async def run() -> None:
        watch = DiskWatch()
        writer = LogWriter(disk, watch)
        await scenario(writer, watch)
        disk.works.set()
        await writer.flush(PATIENCE)
        writer.close()

    asyncio.run(run())


def write(writer: LogWriter, iterations: range) -> None:
    for iteration in iterations:
        writer.write({"iteration": iteration})


def test_what_is_flushed_is_in_the_file(disk: Disk) -> None:
    async def scenario(writer: LogWriter, _: DiskWatch) -> None:
        write(writer, range(5))
        assert await writer.flush(PATIENCE)
        assert disk.iterations == list(range(5))

    run(disk, scenario)


def test_lines_wait_for_a_disk_that_hangs_and_nobody_waits_with_them(disk: Disk) -> None:
    async def scenario(writer: LogWriter, watch: DiskWatch) -> None:
        disk.works.clear()
        write(writer, range(5))
        assert not await writer.flush(0.05)
        assert watch.busy_seconds > 0
        assert disk.iterations == []
        disk.works.set()
        assert await writer.flush(PATIENCE)
        assert watch.busy_seconds == 0

    run(disk, scenario)
    assert disk.iterations == list(range(5))


def test_a_disk_that_hangs_is_seen_also_when_nobody_waits_for_it_any_more(disk: Disk) -> None:
    async def scenario(writer: LogWriter, watch: DiskWatch) -> None:
        disk.works.clear()
        assert not await writer.flush(0.0)
        await asyncio.sleep(0)  # for what is called when a future is done
        assert watch.busy_seconds > 0

    run(disk, scenario)


def test_lines_that_do_not_fit_are_written_when_there_is_room(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "RETRY_SECONDS", 0.01)

    async def scenario(writer: LogWriter, _: DiskWatch) -> None:
        disk.is_full = True
        write(writer, range(5))
        assert not await writer.flush(0.05)
        disk.is_full = False
        write(writer, range(5, 6))
        assert await writer.flush(PATIENCE)

    run(disk, scenario)
    assert disk.iterations == list(range(6))


LINE_BYTES = len(encode({"iteration": 0}))


def test_a_bounded_number_of_bytes_waits_in_memory(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_writer, "MAX_WAITING_BYTES", 3 * LINE_BYTES)

    async def scenario(writer: LogWriter, _: DiskWatch) -> None:
        disk.works.clear()
        write(writer, range(10))
        assert writer.dropped == 7

    with caplog.at_level(logging.ERROR):
        run(disk, scenario)
    assert disk.iterations == [0, 1, 2]
    assert caplog.messages == ["lines of the training log are dropped: 3 of them wait for the disk"]


def test_what_waits_is_written_as_soon_as_there_is_room_though_no_line_fitted_into_memory(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "MAX_WAITING_BYTES", 3 * LINE_BYTES)

    async def scenario(writer: LogWriter, _: DiskWatch) -> None:
        disk.is_full = True
        write(writer, range(10))
        await asyncio.wrap_future(writer._thread.submit(bool))  # all that was tried has failed
        disk.is_full = False
        writer.write({"iteration": 10})
        await asyncio.wrap_future(writer._thread.submit(bool))
        assert disk.iterations == [0, 1, 2]

    run(disk, scenario)


def test_a_disk_that_hangs_has_one_task_however_many_lines_there_are(disk: Disk) -> None:
    async def scenario(writer: LogWriter, _: DiskWatch) -> None:
        disk.works.clear()
        write(writer, range(1000))
        assert writer._thread._work_queue.qsize() <= 1

    run(disk, scenario)
    assert disk.iterations == list(range(1000))
