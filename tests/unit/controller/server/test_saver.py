import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dbw_controller.core.errors import DiskFailedError, SessionReplacedError
from dbw_controller.server.saver import DISK_SECONDS, RETRY_SECONDS, SAVE_SECONDS, Disk, Saver
from tests.unit.controller.server.jobs import Store, run, virtual_clock

SAVE_ITERATIONS = 10
LONG = 3600.0  # that a disk hangs


class Saved:
    """A saver and its disk, and the state that it saves. The first snapshot is written at once."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.disk = Disk(self.store, SAVE_ITERATIONS, virtual_clock)
        self.saver = self.other("resnet")
        self.state: bytes | None = b"state"
        self.states_taken = 0

    def other(self, name: str) -> Saver:
        """The saver of another job."""
        return Saver(name, self.disk, self._state)

    async def _state(self) -> bytes | None:
        self.states_taken += 1
        return self.state

    async def delete(self) -> None:
        """Delete the job, which has no state any more then."""
        await self.saver.delete(lambda: None, self._end)

    async def _end(self) -> None:
        self.state = None

    async def save_first(self) -> None:
        """Let the job change for the first time."""
        self.saver.changed(0)
        await settled()
        self.store.written.clear()

    async def change(self, iterations: int) -> int:
        """Let the job change; returns how many snapshots there are then."""
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


def test_a_job_is_saved_at_once_and_then_after_half_of_the_iterations_that_a_crash_may_lose(saved: Saved) -> None:
    async def claims() -> None:
        assert await saved.change(0) == 1
        assert await saved.change(SAVE_ITERATIONS // 2 - 1) == 1
        assert await saved.change(1) == 2
        assert saved.saver.unsaved_iterations == 0
        assert saved.store.read("resnet") == b"state"
        assert await saved.change(SAVE_ITERATIONS // 2 - 1) == 2

    run(claims())


def test_whatever_changes_is_saved_after_some_seconds_even_if_nothing_else_changes(saved: Saved) -> None:
    async def claims() -> None:
        await saved.save_first()
        assert await saved.change(1) == 0
        await asyncio.sleep(SAVE_SECONDS - 1.0)
        assert await saved.change(1) == 0
        await asyncio.sleep(1.0)
        await settled()
        assert (len(saved.store.written), saved.saver.is_unsaved) == (1, False)
        await asyncio.sleep(SAVE_SECONDS)
        assert await saved.change(1) == 2, "which was long enough ago to be saved at once"

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


def test_a_disk_that_fails_is_tried_again_by_itself_and_nothing_counts_as_saved(saved: Saved) -> None:
    async def claims() -> None:
        saved.store.fails = True
        await saved.change(SAVE_ITERATIONS)
        await saved.change(1)  # which does not hasten it
        assert (saved.disk.failures, saved.saver.unsaved_iterations) == (1, SAVE_ITERATIONS + 1)
        saved.store.fails = False
        await asyncio.sleep(RETRY_SECONDS)
        await settled()
        assert (saved.disk.failures, saved.saver.unsaved_iterations, saved.saver.is_unsaved) == (1, 0, False)
        assert await saved.change(SAVE_ITERATIONS) == 2

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


def test_while_the_disk_hangs_one_snapshot_is_in_memory_however_many_jobs_change(saved: Saved) -> None:
    async def claims() -> None:
        saved.store.hangs_until = LONG
        savers = [saved.saver, *(saved.other(f"job-{number}") for number in range(20))]
        for _ in range(50):
            for saver in savers:
                saver.changed(SAVE_ITERATIONS)
            await asyncio.sleep(1.0)
        assert saved.states_taken == 1
        assert saved.disk.watch.busy_seconds > 49.0
        await asyncio.sleep(LONG)
        assert [saver.is_unsaved for saver in savers] == [False] * len(savers)
        assert saved.disk.watch.busy_seconds == 0.0

    run(claims())


def test_a_job_that_was_deleted_is_not_written_any_more(saved: Saved) -> None:
    async def claims() -> None:
        await saved.change(SAVE_ITERATIONS)
        await saved.delete()
        assert await saved.change(SAVE_ITERATIONS) == 1
        assert saved.store.names() == []

    run(claims())


def test_a_job_that_is_deleted_while_it_is_being_saved_stays_deleted(saved: Saved) -> None:
    async def claims() -> None:
        saved.saver.changed(SAVE_ITERATIONS)
        await saved.delete()
        await settled()
        assert saved.store.names() == []

    run(claims())


@pytest.mark.parametrize("busy", [False, True])
def test_a_job_that_cannot_be_deleted_in_time_is_there_with_its_snapshot_when_the_disk_works_again(
    saved: Saved, busy: bool
) -> None:
    async def claims() -> None:
        await saved.save_first()
        saved.store.hangs_until = LONG
        if busy:
            saved.saver.changed(SAVE_ITERATIONS)
            await asyncio.sleep(1.0)
        begun = virtual_clock()
        for _ in range(3):
            with pytest.raises(DiskFailedError):
                await saved.delete()
        assert virtual_clock() - begun <= 3 * DISK_SECONDS + 0.1
        assert saved.state is not None
        await asyncio.sleep(LONG + SAVE_SECONDS)
        assert saved.store.names() == ["resnet"]
        assert not saved.saver.is_unsaved

    run(claims())


def test_a_deletion_goes_before_the_snapshots_that_wait(saved: Saved) -> None:
    async def claims() -> None:
        await saved.save_first()
        saved.store.seconds = 0.015
        for number in range(300):
            saved.other(f"job-{number}").changed(SAVE_ITERATIONS)
        await asyncio.sleep(0.1)
        before = len(saved.store.written)
        await saved.saver.delete(lambda: None, partial(asyncio.sleep, 0))
        assert len(saved.store.written) <= before + 1, "the one that was being written"
        await settled()
        assert len(saved.store.written) == 300, "nothing is lost"

    run(claims())


@pytest.mark.parametrize(("jobs", "seconds"), [(300, 0.015), (5, 0.9 * DISK_SECONDS)])
def test_however_long_deletions_wait_for_each_other_they_succeed_while_the_disk_works(
    saved: Saved, jobs: int, seconds: float
) -> None:
    async def claims() -> None:
        saved.store.seconds = seconds
        savers = [saved.other(f"job-{number}") for number in range(jobs)]
        for saver in savers:
            saver.changed(SAVE_ITERATIONS)
        await asyncio.sleep(1.0)
        await asyncio.gather(*(saver.delete(lambda: None, saved._end) for saver in savers))
        await settled()
        assert saved.store.names() == []

    run(claims())


def test_a_job_whose_snapshot_cannot_be_deleted_is_saved_again(saved: Saved) -> None:
    async def claims() -> None:
        await saved.save_first()
        saved.store.fails = True
        with pytest.raises(DiskFailedError):
            await saved.delete()
        saved.store.fails = False
        await saved.saver.save()
        assert saved.store.written == [b"state"]

    run(claims())


def test_a_job_that_may_not_end_any_more_when_its_snapshot_is_deleted_is_saved_again(saved: Saved) -> None:
    async def refuse() -> None:
        raise SessionReplacedError("resnet")

    async def claims() -> None:
        await saved.save_first()
        with pytest.raises(SessionReplacedError):
            await saved.saver.delete(lambda: None, refuse)
        await settled()
        assert saved.store.names() == ["resnet"]

    run(claims())


def test_a_deletion_that_is_refused_writes_nothing(saved: Saved) -> None:
    def refuse() -> None:
        raise SessionReplacedError("resnet")

    async def claims() -> None:
        await saved.save_first()
        with pytest.raises(SessionReplacedError):
            await saved.saver.delete(refuse, saved._end)
        await settled()
        assert saved.store.written == []

    run(claims())


def test_a_deletion_whose_turn_does_not_come_writes_nothing(saved: Saved) -> None:
    async def claims() -> None:
        await saved.save_first()
        saved.store.hangs_until = LONG
        saved.other("vgg").changed(SAVE_ITERATIONS)
        await asyncio.sleep(1.0)
        with pytest.raises(DiskFailedError):
            await saved.delete()
        assert not saved.saver.is_unsaved
        await asyncio.sleep(LONG)
        assert saved.states_taken == 2, "of each job once"

    run(claims())


def test_without_a_store_nothing_waits_to_be_saved() -> None:
    async def claims() -> None:
        saver = Saver("resnet", Disk(None, SAVE_ITERATIONS), lambda: pytest.fail("nobody needs a snapshot"))
        saver.changed(2 * SAVE_ITERATIONS)
        await saver.save()
        await saver.delete(lambda: None, partial(asyncio.sleep, 0))
        assert (saver.unsaved_iterations, saver.is_unsaved) == (0, False)

    run(claims())
