import asyncio
import logging

import pytest

from dbw_runtime import disk_watch
from dbw_runtime.disk_watch import DiskWatch


def test_the_oldest_write_under_way_tells_how_long_the_disk_is_busy() -> None:
    now = [0.0]
    disk = DiskWatch(clock=lambda: now[0])

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        log_line, checkpoint = loop.create_future(), loop.create_future()
        disk.watch("a log", log_line)
        now[0] = 5.0
        disk.watch("a checkpoint", checkpoint)
        disk.watch("a log", loop.create_future())  # a later one of the same kind does not begin the time again
        now[0] = 7.0
        assert disk.busy_seconds == 7.0
        log_line.set_result(None)
        await asyncio.sleep(0)
        assert disk.busy_seconds == 2.0
        checkpoint.set_exception(OSError("full"))
        await asyncio.sleep(0)
        assert disk.busy_seconds == 0.0

    asyncio.run(scenario())


def test_a_write_that_waits_behind_another_one_is_watched_when_its_turn_comes() -> None:
    now = [0.0]
    disk = DiskWatch(clock=lambda: now[0])

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        first, second, third = (loop.create_future() for _ in range(3))
        for write in (first, second, third):
            disk.watch("a log", write)
        second.set_result(None)
        now[0] = 5.0
        first.set_result(None)
        await asyncio.sleep(0)
        assert disk.busy_seconds == 0.0
        now[0] = 7.0
        assert disk.busy_seconds == 2.0
        third.set_result(None)
        await asyncio.sleep(0)
        assert disk.busy_seconds == 0.0
        now[0] = 9.0
        assert disk.busy_seconds == 0.0

    asyncio.run(scenario())


def test_a_write_that_takes_long_is_logged_and_one_that_ends_is_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_watch, "HANG_SECONDS", 0.0)

    async def scenario() -> None:
        loop, disk = asyncio.get_running_loop(), DiskWatch()
        quick, hanging = loop.create_future(), loop.create_future()
        disk.watch("the quick one", quick)
        quick.set_result(None)
        await quick
        disk.watch("the slow one", hanging)
        while not caplog.records:
            await asyncio.sleep(0)

    caplog.set_level(logging.WARNING)
    asyncio.run(scenario())
    assert [record.args for record in caplog.records] == [("the slow one", 0.0)]
