import asyncio

from dbw.v1.controller_pb2 import WatchJobResponse
from dbw.v1.iteration_pb2 import IterationSummary
from dbw_controller.server.watchers import LONGEST_QUEUE, Watcher, tell_all


def response(iteration: int) -> WatchJobResponse:
    return WatchJobResponse(summary=IterationSummary(iteration=iteration))


def test_a_watcher_that_is_too_slow_gets_the_newest_iterations_and_how_many_it_missed() -> None:
    async def claims() -> None:
        slow, fast = Watcher(include_estimates=False), Watcher(include_estimates=False)
        for iteration in range(LONGEST_QUEUE + 3):
            tell_all([slow, fast], lambda _: response(iteration))  # noqa: B023 (called at once)
            assert await fast.next() == response(iteration)
        first, second = await slow.next(), await slow.next()
        assert first is not None
        assert (first.summary.iteration, first.skipped_iterations) == (3, 3)
        assert second == response(4)

    asyncio.run(claims())


def test_estimates_are_computed_only_for_those_who_want_them() -> None:
    async def claims() -> None:
        asked = list[bool]()

        def build(include_estimates: bool) -> WatchJobResponse:
            asked.append(include_estimates)
            return response(int(include_estimates))

        plain, with_estimates = [Watcher(include_estimates=False) for _ in range(2)], Watcher(include_estimates=True)
        tell_all(plain, build)
        assert asked == [False]
        tell_all([*plain, with_estimates], build)
        assert sorted(asked) == [False, False, True]
        assert await with_estimates.next() == response(1)
        assert [await watcher.next() for watcher in plain] == [response(0)] * 2

    asyncio.run(claims())


def test_a_watcher_sees_what_is_queued_before_the_end() -> None:
    async def claims() -> None:
        watcher = Watcher(include_estimates=False)
        waiting = asyncio.ensure_future(watcher.next())
        await asyncio.sleep(0)
        watcher.tell(response(0))
        watcher.tell(response(1))
        watcher.end()
        assert await waiting == response(0)
        assert await watcher.next() == response(1)
        assert await watcher.next() is None

    asyncio.run(claims())
