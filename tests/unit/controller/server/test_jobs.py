import asyncio
from pathlib import Path

import pytest

from dbw_controller.core.errors import InvalidValueError, JobNotFoundError, LimitReachedError, NotOwnerError
from dbw_controller.core.policies import Dbw
from dbw_controller.core.reports import Membership
from dbw_controller.core.spec import JobSpec
from dbw_controller.server.jobs import Jobs
from dbw_controller.server.served_job import ServedJob
from tests.unit.controller.server.jobs import Clock, Store


def create(jobs: Jobs, name: str, identity: str = "alice") -> ServedJob:
    return jobs.create(name, identity, JobSpec(Dbw()), Membership(4), 0)


def test_jobs_are_listed_by_name_and_belong_to_their_owner() -> None:
    jobs = Jobs(None, 10, 100)
    vgg, resnet = create(jobs, "vgg"), create(jobs, "resnet")
    assert jobs.all() == [resnet, vgg]
    assert jobs.get("vgg", "alice") is vgg
    with pytest.raises(NotOwnerError):
        jobs.get("vgg", "bob")
    with pytest.raises(JobNotFoundError):
        jobs.get("bert", "alice")


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
        await jobs.delete(served, "deleted")  # which is done already
        create(jobs, "vgg").changed()
        await jobs.close()
        assert [path.name for path in tmp_path.glob("*.job")] == ["vgg.job"]

    asyncio.run(claims())


def test_only_jobs_that_were_silent_for_too_long_are_deleted(tmp_path: Path) -> None:
    async def claims() -> None:
        clock, store = Clock(), Store(tmp_path)
        jobs = Jobs(store, 10, 100, clock=clock)
        create(jobs, "silent")
        talking = create(jobs, "talking")
        clock.now = 60.0
        talking.changed()
        clock.now = 100.0
        store.fails = True
        await jobs.delete_silent(99.0)
        assert len(jobs.all()) == 2, "a snapshot that cannot be deleted would come back"
        store.fails = False
        await jobs.delete_silent(99.0)
        assert jobs.all() == [talking]
        await jobs.close()

    asyncio.run(claims())


def test_jobs_come_back_and_snapshots_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    async def save() -> None:
        jobs = Jobs(Store(tmp_path), 10, 100)
        create(jobs, "resnet").changed()
        create(jobs, "vgg").changed()
        await jobs.close()

    asyncio.run(save())
    (tmp_path / "vgg.job").write_bytes(b"damaged")
    jobs = Jobs(Store(tmp_path), 10, 100)
    jobs.load()
    assert [served.name for served in jobs.all()] == ["resnet"]
    assert (tmp_path / "vgg.job.damaged-1").read_bytes() == b"damaged"
    jobs.disk.close()
