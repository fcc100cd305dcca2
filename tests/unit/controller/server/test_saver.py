import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from dbw_controller.server.saver import RETRY_SECONDS, SAVE_SECONDS, Disk, Saver
from tests.unit.controller.server.jobs import Clock, Store

SAVE_ITERATIONS = 10


class Saved:
    """A saver, its disk and its clock, and the state that it saves."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.store = Clock(1.0), Store(folder)
        self.disk = Disk(self.store, SAVE_ITERATIONS, self.clock)
        self.saver = Saver("resnet", self.disk, self._snapshot)
        self.state: bytes | None = b"state"

    async def _snapshot(self) -> bytes | None:
        return self.state

    async def change(self, iterations: int, seconds: float = 0.0) -> int:
        """Let the job change, and time pass before; returns how many snapshots there are then."""
        self.clock.now += seconds
        self.saver.changed(iterations)
        await settled()
        return len(self.store.written)


async def settled() -> None:
    """Wait for all that was begun."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Saved]:
    saved = Saved(tmp_path)
    yield saved
    saved.disk.close()


def run(claims: Coroutine[Any, Any, None]) -> None:
    asyncio.run(claims)


def test_a_job_is_saved_after_half_of_the_iterations_that_a_crash_may_lose(saved: Saved) -> None:
    async def claims() -> None:
        assert await saved.change(SAVE_ITERATIONS // 2 - 1) == 0
        assert await saved.change(1) == 1
        assert saved.saver.unsaved_iterations == 0
        assert saved.store.read("resnet") == b"state"
        assert await saved.change(SAVE_ITERATIONS // 2 - 1) == 1

    run(claims())


def test_a_job_with_slow_iterations_is_saved_by_the_clock(saved: Saved) -> None:
    async def claims() -> None:
        assert await saved.change(0, SAVE_SECONDS - saved.clock.now) == 0
        assert await saved.change(0, 0.5) == 1
        assert await saved.change(1, SAVE_SECONDS) == 1

    run(claims())


def test_reports_wait_for_a_snapshot_only_when_a_crash_could_lose_too_much(saved: Saved) -> None:
    async def claims() -> None:
        saved.saver.changed(SAVE_ITERATIONS // 2)
        assert saved.saver.must_wait() is None
        saved.saver.changed(SAVE_ITERATIONS // 2)
        saving = saved.saver.must_wait()
        assert saving is not None
        await saving
        assert saved.saver.must_wait() is None

    run(claims())


def test_what_changes_while_a_snapshot_is_taken_is_in_the_next_one(saved: Saved) -> None:
    async def claims() -> None:
        saved.saver.changed(SAVE_ITERATIONS)
        await asyncio.sleep(0)  # the snapshot is being taken
        saved.saver.changed(3)
        saved.state = b"newer"
        await settled()
        assert saved.saver.unsaved_iterations == 3
        await saved.saver.save()
        assert saved.saver.unsaved_iterations == 0
        assert saved.store.read("resnet") == b"newer"

    run(claims())


def test_a_job_that_has_not_changed_is_not_written_again(saved: Saved) -> None:
    async def claims() -> None:
        assert await saved.change(SAVE_ITERATIONS) == 1
        await saved.saver.save()
        assert len(saved.store.written) == 1

    run(claims())


def test_a_disk_that_fails_is_tried_again_after_a_while_and_nothing_counts_as_saved(saved: Saved) -> None:
    async def claims() -> None:
        saved.store.fails = True
        await saved.change(SAVE_ITERATIONS)
        assert (saved.disk.failures, saved.saver.unsaved_iterations) == (1, SAVE_ITERATIONS)
        assert saved.saver.must_wait() is None, "decisions go on"
        saved.store.fails = False
        assert await saved.change(1, RETRY_SECONDS) == 0
        assert await saved.change(1, 0.5) == 1
        assert (saved.disk.failures, saved.saver.unsaved_iterations) == (1, 0)

    run(claims())


def test_a_state_that_cannot_be_taken_counts_as_a_failure(saved: Saved) -> None:
    async def broken() -> bytes:
        raise ValueError("a bug")

    async def claims() -> None:
        saver = Saver("resnet", saved.disk, broken)
        saver.changed(SAVE_ITERATIONS)
        await settled()
        assert (saved.disk.failures, saver.unsaved_iterations) == (1, SAVE_ITERATIONS)

    run(claims())


def test_a_job_that_was_deleted_meanwhile_is_not_written(saved: Saved) -> None:
    async def claims() -> None:
        saved.state = None
        assert await saved.change(SAVE_ITERATIONS) == 0
        assert list(saved.store.names()) == []

    run(claims())


def test_without_a_store_nothing_waits_to_be_saved() -> None:
    async def claims() -> None:
        saver = Saver("resnet", Disk(None, SAVE_ITERATIONS), lambda: pytest.fail("nobody needs a snapshot"))
        saver.changed(2 * SAVE_ITERATIONS)
        await saver.save()
        await saver.delete()
        assert (saver.unsaved_iterations, saver.must_wait()) == (0, None)

    run(claims())
