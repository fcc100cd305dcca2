import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dbw_controller.core.errors import (
    DiskFailedError,
    JobNotFoundError,
    SessionNotFoundError,
    SessionReplacedError,
    StateDamagedError,
)
from dbw_controller.core.estimators.durations import Solver
from dbw_controller.core.reports import Membership
from dbw_controller.server.saver import Disk
from dbw_controller.server.served_job import REPLACED_SESSIONS, ServedJob
from dbw_controller.server.watchers import Watcher
from tests.jobs import full_report
from tests.unit.controller.server.jobs import Clock, Store, served_job


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.close()


def test_only_the_newest_session_may_change_a_job() -> None:
    served = served_job()
    first, second = served.begin_session(), served.begin_session()
    served.require_session(second)
    with pytest.raises(SessionReplacedError):
        served.apply_report(first, full_report(0), 0.0)
    with pytest.raises(SessionNotFoundError):
        served.require_session("of a controller that has restarted")
    assert served.job.learnt_iterations == 0


def test_a_session_does_not_follow_from_another() -> None:
    served = served_job()
    first, second = served.begin_session(), served.begin_session()
    for guess in ("", first[:-1], f"{second}x", first[:8] + second[8:]):
        with pytest.raises(SessionNotFoundError):
            served.require_session(guess)
    assert first[:8] != second[:8], "they differ from their beginning"


def test_the_last_replaced_sessions_are_remembered() -> None:
    served = served_job()
    sessions = [served.begin_session() for _ in range(REPLACED_SESSIONS + 2)]
    for session in sessions[1:-1]:
        with pytest.raises(SessionReplacedError):
            served.require_session(session)
    with pytest.raises(SessionNotFoundError):
        served.require_session(sessions[0])


def test_a_report_leads_to_a_new_decision_once() -> None:
    served = served_job()
    session = served.begin_session()
    first = served.apply_report(session, full_report(0), 0.0)
    again = served.apply_report(session, full_report(0), 0.0)
    assert (first.is_new, again.is_new) == (True, False)
    assert again.decision == first.decision == served.decision
    assert first.before.iteration == 0


def test_the_decisions_of_one_request_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    served = served_job()
    monkeypatch.setattr(time, "perf_counter", partial(next, count(11.0)))  # every look at the clock takes a second
    reports = [full_report(0), full_report(0), full_report(1), full_report(2)]
    outcomes, _ = served.apply_reports(served.begin_session(), reports, begin=10.0)
    assert [outcome and outcome.seconds for outcome in outcomes] == [1.0, None, 1.0, 1.0]


def test_what_was_applied_is_counted_and_kept_for_a_diagnosis_until_another_parameter_server_attaches() -> None:
    served = served_job()
    session = served.begin_session()
    for _ in range(2):  # the second one repeats the first
        served.record(full_report(0), served.apply_report(session, full_report(0), 0.0), by_worker=True)
    assert served.statistics.iterations == 1
    assert served.statistics.worker_arrivals == {0: 2, 1: 2, 2: 2, 3: 2}
    assert served.recent.diagnose(served.job.spec.sync_mode).iterations == 1
    served.attach(Membership(4), 0)
    assert len(served.recent) == 0


def test_a_job_does_one_thing_at_a_time_and_is_free_afterwards() -> None:
    async def claims() -> None:
        served, go_on, order = served_job(), threading.Event(), list[str]()

        def slow() -> None:
            go_on.wait()
            order.append("slow")

        first = asyncio.ensure_future(served.run(slow, in_thread=True))
        await asyncio.sleep(0)  # let it begin
        await asyncio.sleep(0)
        assert not served.is_free
        second = asyncio.ensure_future(served.run(lambda: order.append("next")))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, second)
        assert order == ["slow", "next"]
        assert served.is_free

    asyncio.run(claims())


def test_what_follows_a_change_is_done_even_if_the_caller_has_gone_away() -> None:
    async def claims() -> None:
        served, go_on, followed = served_job(), threading.Event(), asyncio.Event()
        caller = asyncio.ensure_future(served.run(go_on.wait, then=lambda _: followed.set(), in_thread=True))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go_on.set()
        await followed.wait()

    asyncio.run(claims())


def test_what_a_job_refuses_a_caller_that_has_gone_away_is_no_error_in_the_log() -> None:
    async def claims() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: problems.append(about))
        served, go_on = served_job(), threading.Event()

        def refuse() -> None:
            go_on.wait()
            served.require_session("of somebody else")

        caller = asyncio.ensure_future(served.run(refuse, in_thread=True))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        go_on.set()
        await served.run(lambda: None, in_thread=True)  # which waits for what was refused
        gc.collect()
        assert problems == []

    asyncio.run(claims())


def test_a_deleted_job_takes_no_report_and_ends_its_watchers() -> None:
    async def claims() -> None:
        served = served_job()
        session, watcher = served.begin_session(), Watcher(include_estimates=False)
        served.watchers.add(watcher)
        await served.delete()
        assert await watcher.next() is None
        with pytest.raises(JobNotFoundError):
            served.apply_report(session, full_report(0), 0.0)

    asyncio.run(claims())


def test_only_the_current_session_deletes_a_job_and_an_operator_who_names_none() -> None:
    async def claims() -> None:
        served = served_job()
        first, second = served.begin_session(), served.begin_session()
        with pytest.raises(SessionReplacedError):
            await served.delete(first)
        with pytest.raises(SessionNotFoundError):
            await served.delete("")
        assert not served.ended
        await served.delete(second)
        assert served.ended
        other = served_job()
        await other.delete()
        assert other.ended

    asyncio.run(claims())


def test_of_a_deletion_and_a_new_session_that_wait_for_the_job_only_one_happens() -> None:
    async def claims(delete_first: bool) -> list[object]:
        served, go_on = served_job(), threading.Event()
        session = served.begin_session()
        slow = asyncio.ensure_future(served.run(go_on.wait, in_thread=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        def attach() -> "asyncio.Future[str]":
            return asyncio.ensure_future(served.run(partial(served.attach, Membership(4), None)))

        attachment = None if delete_first else attach()
        await asyncio.sleep(0)
        deletion = asyncio.ensure_future(served.delete(session))
        await asyncio.sleep(0)
        attachment = attachment or attach()
        go_on.set()
        await slow
        return list(await asyncio.gather(deletion, attachment, return_exceptions=True))

    for delete_first in (True, False):
        deleted, attached = asyncio.run(claims(delete_first))
        happened = deleted is None, isinstance(attached, str)
        assert happened in [(True, False), (False, True)]
        assert isinstance(attached if deleted is None else deleted, JobNotFoundError | SessionReplacedError)


def test_a_job_whose_snapshot_cannot_be_deleted_goes_on(store: Store) -> None:
    async def claims() -> None:
        served = served_job(Disk(store, 10))
        session = served.begin_session()
        store.fails = True
        with pytest.raises(DiskFailedError, match="the disk is full"):
            await served.delete()
        assert served.apply_report(session, full_report(0), 0.0).is_new

    asyncio.run(claims())


def test_a_snapshot_is_not_written_once_its_job_is_being_deleted(store: Store) -> None:
    async def claims() -> None:
        disk = Disk(store, 10, Clock(1.0))
        other, served = served_job(disk, "other"), served_job(disk)
        other.changed(10)  # which takes the disk's turn
        served.changed(10)
        await served.delete()
        await served.saver.save()
        assert (len(store.written), list(store.names())) == (1, ["other"])

    asyncio.run(claims())


def test_a_job_comes_back_from_its_snapshot_under_its_own_name_only() -> None:
    served, disk = served_job(), Disk(None, 10)
    served.apply_report(served.begin_session(), full_report(0), 0.0)
    back = ServedJob.restore("resnet", served.snapshot(), Solver.EXACT, disk)
    assert (back.name, back.owner, back.created, back.updated) == ("resnet", "alice", 1.0, 1.0)
    assert back.snapshot() == served.snapshot()
    with pytest.raises(StateDamagedError):
        ServedJob.restore("vgg", served.snapshot(), Solver.EXACT, disk)
