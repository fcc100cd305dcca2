import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from dbw_controller.core.errors import LimitReachedError
from dbw_controller.server.heavy import AT_A_TIME, MAX_WAITING, HeavyWork
from tests.unit.controller.server.jobs import run


class Work:
    """What goes on until it is told to end."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.done = asyncio.Event()

    def of(self, identity: str) -> Callable[[], Awaitable[str]]:
        async def work() -> str:
            self.running.append(identity)
            await self.done.wait()
            self.running.remove(identity)
            return identity

        return work


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_one_thing_is_done_at_a_time_for_each_identity_and_few_in_all() -> None:
    async def claims() -> None:
        heavy, work = HeavyWork(), Work()
        identities = ["alice", "alice", *"bcdefg"]
        calls = [asyncio.ensure_future(heavy.run(name, work.of(name))) for name in identities]
        await settle()
        assert work.running == ["alice", "b"]
        assert len(work.running) == AT_A_TIME
        work.done.set()
        assert await asyncio.gather(*calls) == identities

    run(claims())


def test_a_limited_number_waits_for_each_identity() -> None:
    async def claims() -> None:
        heavy, work = HeavyWork(), Work()
        calls = [asyncio.ensure_future(heavy.run("alice", work.of("alice"))) for _ in range(1 + MAX_WAITING)]
        await settle()
        with pytest.raises(LimitReachedError) as refused:
            await heavy.run("alice", work.of("alice"))
        assert refused.value.limit == "heavy_work"
        other = asyncio.ensure_future(heavy.run("bob", work.of("bob")))
        calls[-1].cancel()  # and makes room for another
        await settle()
        assert work.running == ["alice", "bob"]
        calls[-1] = asyncio.ensure_future(heavy.run("alice", work.of("alice")))
        work.done.set()
        await asyncio.gather(*calls, other)

    run(claims())


def test_work_whose_caller_goes_away_keeps_its_turn_until_it_ends() -> None:
    async def claims() -> None:
        heavy, work = HeavyWork(), Work()
        gone, following = (asyncio.ensure_future(heavy.run("alice", work.of("alice"))) for _ in range(2))
        await settle()
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        assert work.running == ["alice"]
        work.done.set()
        assert await following == "alice"

    run(claims())


def test_work_that_fails_when_its_caller_has_gone_is_no_error_in_the_log() -> None:
    async def claims() -> None:
        heavy, go_on, problems = HeavyWork(), asyncio.Event(), list[object]()
        asyncio.get_running_loop().set_exception_handler(lambda _, about: problems.append(about))

        async def fail() -> None:
            await go_on.wait()
            raise LimitReachedError("memory", "there is no room")

        gone = asyncio.ensure_future(heavy.run("alice", fail))
        await settle()
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        go_on.set()
        await settle()
        gc.collect()
        assert problems == []

    asyncio.run(claims())
