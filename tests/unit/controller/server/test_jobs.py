import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw, Struct

from dbw_controller.core.errors import (
    DiskFailedError,
    InvalidValueError,
    JobNotFoundError,
    LimitReachedError,
    NotOwnerError,
)
from dbw_controller.core.policies import Dbw
from dbw_controller.core.reports import Membership
from dbw_controller.core.spec import JobSpec
from dbw_controller.core.state import Name, decode
from dbw_controller.server.job_messages import job_message
from dbw_controller.server.jobs import STOP_SECONDS, Jobs, readable
from dbw_controller.server.served_job import ServedJob, WallTime
from dbw_controller.server.store import SnapshotStore
from dbw_runtime.callers import Caller
from dbw_runtime.disk_watch import HANG_SECONDS
from dbw_runtime.durable import FolderError
from dbw_runtime.server import UnsavedError
from tests.states import Change, changed
from tests.unit.controller.server.jobs import Clock, Store, run, served_job, virtual_clock

ALICE, BOB = Caller("alice"), Caller("bob")
LONG = 3600.0  # that a disk hangs


def create(jobs: Jobs, name: str, identity: str = "alice") -> ServedJob:
    return jobs.create(name, identity, JobSpec(Dbw()), Membership(4), 0)


def test_jobs_are_listed_by_name_and_belong_to_their_owner() -> None:
    jobs = Jobs(None, 10, 100)
    vgg, resnet = create(jobs, "vgg"), create(jobs, "resnet")
    assert jobs.all() == [resnet, vgg]
    assert jobs.get("vgg", ALICE, for_admins=True) is vgg
    assert (jobs.visible(ALICE), jobs.visible(BOB)) == ([resnet, vgg], [])
    for name in ("vgg", "bert"):
        with pytest.raises(JobNotFoundError):
            jobs.get(name, BOB, for_admins=True)
    with pytest.raises(NotOwnerError):
        create(jobs, "vgg", "bob")


def test_an_administrator_sees_the_jobs_of_all_and_uses_its_own() -> None:
    jobs, admin = Jobs(None, 10, 100), Caller("ops", is_admin=True)
    vgg, own = create(jobs, "vgg"), create(jobs, "own", "ops")
    assert jobs.visible(admin) == [own, vgg]
    assert jobs.get("vgg", admin, for_admins=True) is vgg
    assert jobs.get("own", admin) is own
    with pytest.raises(JobNotFoundError):
        jobs.get("vgg", admin)
    with pytest.raises(NotOwnerError):
        create(jobs, "vgg", "ops")


def test_a_job_that_is_refused_leaves_nothing_behind() -> None:
    jobs = Jobs(None, 1, 100)
    with pytest.raises(InvalidValueError):
        create(jobs, "../resnet")
    create(jobs, "resnet")
    with pytest.raises(LimitReachedError):
        create(jobs, "vgg")
    assert [served.name for served in jobs.all()] == ["resnet"]


def test_a_deleted_job_makes_room_for_another(tmp_path: Path) -> None:
    async def claims() -> None:
        jobs = Jobs(Store(tmp_path), 1, 100)
        served = create(jobs, "resnet")
        served.changed()
        await served.saver.save()
        await jobs.delete(served, "deleted")
        create(jobs, "vgg").changed()
        await jobs.close()
        assert [path.name for path in tmp_path.glob("*.job")] == ["vgg.job"]

    asyncio.run(claims())


def test_a_job_that_is_deleted_twice_at_once_does_not_take_the_next_one_of_its_name_along(tmp_path: Path) -> None:
    async def claims() -> None:
        jobs = Jobs(Store(tmp_path), 1, 100, clock=virtual_clock)
        served = create(jobs, "resnet")
        first, second = (asyncio.ensure_future(jobs.delete(served, "deleted")) for _ in range(2))
        await first
        again = create(jobs, "resnet")
        again.changed()
        with pytest.raises(JobNotFoundError):
            await second
        assert jobs.all() == [again]
        await jobs.close()
        assert [path.name for path in tmp_path.glob("*.job")] == ["resnet.job"]

    run(claims())


def test_only_jobs_that_were_silent_for_too_long_are_deleted(tmp_path: Path) -> None:
    async def claims() -> None:
        clock, store = Clock(), Store(tmp_path)
        jobs = Jobs(store, 10, 100, clock=clock)
        create(jobs, "silent")
        talking, listening = create(jobs, "talking"), create(jobs, "listening")
        clock.now = 60.0
        talking.changed()
        stream: Any = object()
        listening.streams[stream] = "session"
        clock.now = 100.0
        store.fails = True
        await jobs.delete_silent(99.0)
        assert len(jobs.all()) == 3, "a snapshot that cannot be deleted would come back"
        store.fails = False
        await jobs.delete_silent(99.0)
        assert jobs.all() == [listening, talking], "a job is not silent while a parameter server is connected"
        listening.stream_ended(stream)
        await jobs.delete_silent(99.0)
        assert jobs.all() == [listening, talking], "silence begins when its stream ends"
        await jobs.close()

    asyncio.run(claims())


def test_a_job_that_is_used_again_while_the_disk_is_slow_is_not_deleted_for_its_silence(tmp_path: Path) -> None:
    async def claims() -> None:
        store = Store(tmp_path)
        jobs = Jobs(store, 10, 100, clock=virtual_clock)
        served, other = create(jobs, "silent"), create(jobs, "other")
        await asyncio.sleep(100.0)
        store.hangs_until = virtual_clock() + 1.0
        other.changed()  # which takes the disk's turn
        deleting = asyncio.ensure_future(jobs.delete_silent(99.0))
        await asyncio.sleep(0.5)
        served.attach(Membership(4), None)
        served.changed()
        await deleting
        assert served in jobs.all()
        await jobs.close()

    run(claims())


@pytest.mark.parametrize("jump", [-3600.0, 8 * 86_400.0])
def test_a_wall_clock_that_jumps_is_shown_and_decides_nothing(tmp_path: Path, jump: float) -> None:
    async def claims() -> None:
        wall, store = Clock(1.7e9), Store(tmp_path)
        jobs = Jobs(store, 10, 100, clock=virtual_clock, wall_clock=wall)
        served = create(jobs, "resnet")
        served.changed()
        await asyncio.sleep(1.0)
        wall.now += jump
        served.changed(1)
        await jobs.delete_silent(60.0)
        assert (served.created, served.updated) == (1.7e9, 1.7e9 + jump)
        assert len(store.written) == 1
        await asyncio.sleep(20.0)
        assert (len(store.written), jobs.all()) == (2, [served])
        await jobs.close()

    run(claims())


def test_a_job_that_is_restored_has_not_been_silent_before(tmp_path: Path) -> None:
    async def save() -> None:
        jobs = Jobs(Store(tmp_path), 10, 100, wall_clock=Clock(1.0))
        create(jobs, "resnet").changed()
        await jobs.close()

    asyncio.run(save())
    jobs = Jobs(Store(tmp_path), 10, 100, clock=Clock(5.0))
    jobs.load()
    asyncio.run(jobs.delete_silent(3.0))
    assert [(served.name, served.updated) for served in jobs.all()] == [("resnet", 1.0)]
    jobs.disk.close()


def test_stopping_gives_a_slow_disk_its_time_but_not_one_that_hangs(tmp_path: Path) -> None:
    async def claims() -> None:
        store = Store(tmp_path)
        jobs = Jobs(store, 20, 100, clock=virtual_clock)
        for number in range(12):
            create(jobs, f"job-{number}").changed()
        store.hangs_until = HANG_SECONDS - 1.0
        await jobs.close()
        assert len(store.written) == 12

    async def hangs() -> None:
        store = Store(tmp_path / "other")
        jobs = Jobs(store, 20, 100, clock=virtual_clock)
        for number in range(12):
            create(jobs, f"job-{number}").changed()
        store.hangs_until = LONG
        with pytest.raises(UnsavedError, match=r"is lost: job-0, job-1, .*, …$"):
            await jobs.close()
        assert virtual_clock() < 2 * HANG_SECONDS
        await asyncio.sleep(LONG)
        jobs.disk.close()

    run(claims())
    run(hangs())


def test_stopping_takes_no_longer_the_more_jobs_there_are(tmp_path: Path) -> None:
    async def claims() -> None:
        store = Store(tmp_path)
        jobs = Jobs(store, 100, 100, clock=virtual_clock)
        for number in range(100):
            create(jobs, f"job-{number:02}").changed()
        store.seconds = 0.9 * HANG_SECONDS
        with pytest.raises(UnsavedError, match=r"is lost: job-01, job-02, .*, …$"):
            await jobs.close()
        assert virtual_clock() <= STOP_SECONDS
        assert len(store.written) == 1, "what was written in time is not lost"
        store.seconds = 0.0
        await asyncio.sleep(LONG)
        jobs.disk.close()

    run(claims())


def test_stopping_does_not_wait_for_a_deletion_that_hangs(tmp_path: Path) -> None:
    async def claims() -> None:
        store = Store(tmp_path)
        jobs = Jobs(store, 100, 100, clock=virtual_clock)
        served = create(jobs, "resnet")
        served.changed()
        await served.saver.save()
        store.hangs_until = LONG
        deleting = asyncio.ensure_future(jobs.delete(served, "deleted"))
        await asyncio.sleep(1.0)
        with pytest.raises(UnsavedError, match="resnet"):
            await jobs.close()
        with pytest.raises(DiskFailedError):
            await deleting
        await asyncio.sleep(LONG)
        jobs.disk.close()

    run(claims())


def test_stopping_says_what_a_disk_that_fails_has_not_saved(tmp_path: Path) -> None:
    async def claims() -> None:
        store = Store(tmp_path)
        jobs = Jobs(store, 20, 100, clock=virtual_clock)
        create(jobs, "resnet").changed()
        store.fails = True
        with pytest.raises(UnsavedError, match="resnet"):
            await jobs.close()
        jobs.disk.close()

    run(claims())


def test_a_caller_that_goes_away_does_not_leave_its_job_half_deleted(tmp_path: Path) -> None:
    async def claims() -> None:
        store = Store(tmp_path)
        jobs = Jobs(store, 1, 100, clock=virtual_clock)
        served = create(jobs, "resnet")
        store.hangs_until = 1.0
        caller = asyncio.ensure_future(jobs.delete(served, "deleted"))
        await asyncio.sleep(0.5)
        assert jobs.get("resnet", ALICE) is served, "it is there until its snapshot is gone"
        caller.cancel()
        await asyncio.sleep(1.0)
        assert jobs.all() == []
        jobs.disk.close()

    run(claims())


def test_a_job_that_cannot_be_deleted_is_still_there(tmp_path: Path) -> None:
    async def claims() -> None:
        store = Store(tmp_path)
        jobs = Jobs(store, 1, 100, clock=virtual_clock)
        served = create(jobs, "resnet")
        store.fails = True
        with pytest.raises(DiskFailedError):
            await jobs.delete(served, "deleted")
        assert jobs.get("resnet", ALICE) is served
        jobs.disk.close()

    run(claims())


@pytest.mark.parametrize(
    "failure",
    [
        *(OSError(number, os.strerror(number)) for number in (errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.EIO)),
        MemoryError(),
    ],
)
def test_a_good_snapshot_that_cannot_be_read_stops_the_start_and_stays_where_it_is(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(*_: object) -> bytes:
        raise failure

    before = {path.name: path.read_bytes() for path in stopped.glob("*.job*")}
    jobs = Jobs(SnapshotStore(stopped), 10, 100)
    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(FolderError, match=r"resnet\.job cannot be read: .*; mend that, or move the file away"):
        jobs.load()
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in stopped.glob("*.job*")} == before
    jobs.disk.close()


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The folder of a controller that was stopped, with two jobs."""

    async def save() -> None:
        jobs = Jobs(Store(tmp_path), 10, 100)
        for name in ("resnet", "vgg"):
            create(jobs, name).changed()
        await jobs.close()

    asyncio.run(save())
    return tmp_path


def of_an_earlier_version(state: dict[str, Any]) -> None:
    """Whose owner is the first name in a certificate, without its type."""
    del state["is_owner_exact"]


CAROL = Caller("URI:spiffe://example.org/carol", untyped_names=frozenset({"alice", "spiffe://example.org/carol"}))


def restored(folder: Path, change: Change = of_an_earlier_version) -> Jobs:
    """The jobs of a folder, `resnet` as another version wrote it."""
    store = Store(folder)
    store.write("resnet", changed(store.read("resnet"), change))
    jobs = Jobs(store, 10, 100)
    jobs.load()
    return jobs


def test_a_job_of_an_earlier_version_gets_the_typed_identity_of_its_owner_for_good(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def claims() -> None:
        jobs = restored(stopped)
        served, same_name = jobs.get("resnet", CAROL), Caller("email:alice", untyped_names=frozenset({"alice"}))
        assert jobs.get("resnet", CAROL) is served
        assert (served.owner, len(caplog.messages)) == (CAROL.identity, 1)
        [record] = caplog.records
        told = {key: record.__dict__[key] for key in ("levelname", "job", "old_owner", "owner")}
        assert told == {"levelname": "WARNING", "job": "resnet", "old_owner": "alice", "owner": CAROL.identity}
        with pytest.raises(JobNotFoundError):
            jobs.get("resnet", same_name)
        await jobs.close()
        again = restored(stopped, lambda state: None)
        assert again.get("resnet", CAROL).owner == CAROL.identity
        with pytest.raises(JobNotFoundError):
            again.get("resnet", same_name)
        again.disk.close()

    with caplog.at_level("WARNING"):
        asyncio.run(claims())


def test_looking_does_not_change_the_owner_of_a_job(stopped: Path) -> None:
    jobs = restored(stopped)
    assert [served.owner for served in jobs.visible(CAROL)] == ["alice"]
    assert jobs.get("resnet", Caller("ops", is_admin=True), for_admins=True).owner == "alice"
    assert jobs.get("resnet", ALICE).owner == "alice", "the identity of a token has no type"
    jobs.disk.close()


@pytest.mark.parametrize("caller", [BOB, Caller("DNS:alice"), Caller("DNS:bob", untyped_names=frozenset({"bob"}))])
def test_nobody_without_a_certificate_of_the_owner_s_name_gets_a_job_of_an_earlier_version(
    stopped: Path, caller: Caller
) -> None:
    jobs = restored(stopped)
    with pytest.raises(JobNotFoundError):
        jobs.get("resnet", caller)
    jobs.disk.close()


def test_a_name_in_a_certificate_is_not_the_identity_of_a_token_or_of_the_identity_file(stopped: Path) -> None:
    jobs = restored(stopped, lambda state: None)
    with pytest.raises(JobNotFoundError):
        jobs.get("resnet", CAROL)
    jobs.disk.close()


def test_an_earlier_version_reads_the_snapshots_of_this_one(stopped: Path) -> None:
    class Earlier(Struct, frozen=True):
        name: Name
        owner: Name
        created: WallTime
        updated: WallTime
        job: Raw

    store = Store(stopped)
    assert decode(store.read("resnet"), Earlier).owner == "alice"
    store.close()


def test_jobs_come_back_and_snapshots_that_are_damaged_are_set_aside(stopped: Path) -> None:
    (stopped / "vgg.job").write_bytes(b"damaged")
    jobs = Jobs(Store(stopped), 10, 100)
    jobs.load()
    assert [served.name for served in jobs.all()] == ["resnet"]
    assert (stopped / "vgg.job.damaged-1").read_bytes() == b"damaged"
    jobs.disk.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(created=1e300),
        lambda state: state.update(updated=-1.0),
        lambda state: state["job"].update(membership=(1, [2**32])),
        lambda state: state["job"]["spec"].update(k_min=2**40),
        lambda state: state["job"]["decisions"][-1].update(live_workers=2**40),
        lambda state: state["job"]["learnt"].update(learnt_iterations=2**63 - 1),
    ],
    ids=["created", "updated", "membership", "k_min", "live_workers", "learnt_iterations"],
)
def test_a_snapshot_with_values_that_cannot_be_shown_is_set_aside_as_damaged(stopped: Path, change: Change) -> None:
    store = Store(stopped)
    store.write("vgg", changed(store.read("vgg"), change))
    jobs = Jobs(store, 10, 100)
    jobs.load()
    assert [served.name for served in jobs.all()] == ["resnet"]
    assert (stopped / "vgg.job.damaged-1").exists()
    jobs.disk.close()


def test_a_job_that_cannot_be_shown_hides_no_other() -> None:
    healthy, broken = served_job(name="healthy"), served_job(name="broken")
    broken.created = 1e300
    assert [message.name for _, message in readable([broken, healthy], job_message)] == ["healthy"]
