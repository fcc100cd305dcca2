import asyncio

from dbw.v1.controller_pb2 import WatchJobResponse
from dbw.v1.iteration_pb2 import IterationSummary
from dbw_controller.server.watchers import LONGEST_QUEUE, Watchers


def response(iteration: int) -> WatchJobResponse:
    return WatchJobResponse(summary=IterationSummary(iteration=iteration))


def test_a_watcher_that_is_too_slow_gets_the_newest_iterations_and_how_many_it_missed() -> None:
    async def claims() -> None:
        watchers = Watchers()
        slow, fast = watchers.add(include_estimates=False), watchers.add(include_estimates=False)
        for iteration in range(LONGEST_QUEUE + 3):
            watchers.tell(lambda _: response(iteration))  # noqa: B023 (called at once)
            assert await fast.next() == response(iteration)
        first, second = await slow.next(), await slow.next()
        assert first is not None
        assert (first.summary.iteration, first.skipped_iterations) == (3, 3)
        assert second == response(4)

    asyncio.run(claims())


def test_estimates_are_computed_only_for_those_who_want_them() -> None:
    async def claims() -> None:
        watchers, asked = Watchers(), list[bool]()

        def build(include_estimates: bool) -> WatchJobResponse:
            asked.append(include_estimates)
            return response(int(include_estimates))

        plain = [watchers.add(include_estimates=False) for _ in range(2)]
        watchers.tell(build)
        assert asked == [False]
        with_estimates = watchers.add(include_estimates=True)
        watchers.tell(build)
        assert sorted(asked) == [False, False, True]
        assert await with_estimates.next() == response(1)
        assert [await watcher.next() for watcher in plain] == [response(0)] * 2

    asyncio.run(claims())


def test_a_watcher_sees_what_is_queued_before_the_end() -> None:
    async def claims() -> None:
        watchers = Watchers()
        watcher, gone = watchers.add(include_estimates=False), watchers.add(include_estimates=False)
        watchers.remove(gone)
        waiting = asyncio.ensure_future(watcher.next())
        await asyncio.sleep(0)
        watchers.tell(lambda _: response(0))
        watchers.tell(lambda _: response(1))
        watchers.end()
        assert await waiting == response(0)
        assert await watcher.next() == response(1)
        assert await watcher.next() is None
        assert len(watchers) == 1

    asyncio.run(claims())
