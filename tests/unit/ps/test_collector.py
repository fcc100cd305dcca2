import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dbw.v1.parameter_server_pb2 import GradientHeader
from dbw_ps.aggregate import Aggregate, WholeGradient
from dbw_ps.collector import GradientCollector, NoUsableGradientsError
from dbw_ps.gradient import OutlierError
from dbw_ps.members import Member, Members
from dbw_ps.outliers import Outliers
from dbw_ps.rounds import MAX_ATTEMPTS, Cause, Fate, Rounds

ALONE_SECONDS = 60.0


def gradient(version: int, norm: float) -> WholeGradient:
    header = GradientHeader(version=version, loss=1.0)
    return WholeGradient(header, [torch.tensor([norm, 0.0])], [], norm**2)


class Played:
    """A collector of which a test says what happens, on a virtual clock."""

    def __init__(self, workers: int) -> None:
        self.now = 0.0
        self.members = Members(secrets.token_urlsafe, 1e9)
        aggregate = Aggregate(torch.zeros(2), torch.zeros(0))
        outliers, clock = Outliers(1000.0), lambda: self.now
        self.collector = GradientCollector(Rounds(0), self.members, aggregate, outliers, clock, ALONE_SECONDS)
        self.again: list[int] = []
        self.workers = [self.join(f"worker-{i}") for i in range(workers)]

    def join(self, id_: str) -> Member:
        member, _ = self.members.join(id_, self.now)
        self.collector.membership_changed(member)
        self.collector.wake()
        return member

    def leave(self, member: Member) -> None:
        self.members.leave(member)
        self.collector.membership_changed(member)

    def start_over(self, worker: int) -> None:
        self.again.append(worker)
        self.leave(self.members.numbered(worker))

    def push(self, member: Member, version: int, norm: float = 1.0) -> bool:
        """A gradient; returns whether it is used."""
        try:
            self.collector.use(member, gradient(version, norm))
        except OutlierError as error:
            self.collector.failed(member, version, error.fate)
            return False
        return True

    async def keep_sending_garbage(self, member: Member) -> None:
        """Whenever a worker is asked to send its gradient of iteration 3 again, it is as wrong as before."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            assert not self.push(member, 3, 1e25)
            for _ in range(3):
                await asyncio.sleep(0)
            if attempt < MAX_ATTEMPTS:
                assert self.again == attempt * [member.number]
                self.join(member.id)
        assert len(self.again) == MAX_ATTEMPTS - 1

    async def train(self, iterations: int) -> None:
        for version in range(iterations):
            self.collector.begin(len(self.workers), None)
            for worker in self.workers:
                assert self.push(worker, version)
            assert await self.collector.wait_for_end(self.start_over) is not None
            with ThreadPoolExecutor(1) as compute:
                await self.collector.finish(compute)


def test_a_worker_that_sends_garbage_is_not_believed_because_the_others_are_away() -> None:
    async def claims() -> None:
        played = Played(workers=3)
        await played.train(3)
        bad, *others = played.workers
        played.collector.begin(3, None)
        for other in others:
            played.leave(other)
        waiting = asyncio.ensure_future(played.collector.wait_for_end(played.start_over))
        await played.keep_sending_garbage(bad)
        assert not waiting.done()
        back = played.join("worker-1")
        assert played.push(back, 3)
        end = await waiting
        assert end is not None
        assert end.k == 1

    asyncio.run(claims())


def test_a_training_ends_in_which_only_gradients_come_that_nobody_can_believe() -> None:
    async def claims() -> None:
        played = Played(workers=3)
        await played.train(3)
        played.collector.begin(3, None)
        for other in played.workers[1:]:
            played.leave(other)
        waiting = asyncio.ensure_future(played.collector.wait_for_end(played.start_over))
        await played.keep_sending_garbage(played.workers[0])
        played.now += ALONE_SECONDS
        played.collector.wake()
        with pytest.raises(NoUsableGradientsError, match=r"workers \[0\] are far larger than usual"):
            await waiting

    asyncio.run(claims())


def test_most_workers_are_believed_the_second_time() -> None:
    async def claims() -> None:
        played = Played(workers=3)
        await played.train(3)
        played.collector.begin(3, None)
        played.leave(played.workers[0])
        for member in played.workers[1:]:
            assert not played.push(member, 3, 1e6)
        waiting = asyncio.ensure_future(played.collector.wait_for_end(played.start_over))
        while len(played.again) < 2:
            await asyncio.sleep(0)
        used = [played.push(played.join(member.id), 3, 1e6) for member in played.workers[1:]]
        assert any(used)
        assert await waiting is not None

    asyncio.run(claims())


def test_one_that_is_not_believed_does_not_keep_others_from_starting_over() -> None:
    async def claims() -> None:
        played = Played(workers=2)
        await played.train(3)
        bad, good = played.workers
        played.collector.begin(2, None)
        assert not played.push(bad, 3, 1e25)
        played.collector.completed(good, 3, interrupted=False)  # its stream of parameters had broken
        waiting = asyncio.ensure_future(played.collector.wait_for_end(played.start_over))
        while not played.again:
            await asyncio.sleep(0)
        assert good.number in played.again
        played.collector.stop()
        await waiting

    asyncio.run(claims())


def test_a_worker_that_was_interrupted_without_newer_parameters_is_not_waited_for() -> None:
    async def claims() -> None:
        played = Played(workers=2)
        hasty, other = played.workers
        played.collector.begin(2, None)
        assert played.push(other, 0)
        played.collector.completed(hasty, 0, interrupted=True)
        waiting = asyncio.ensure_future(played.collector.wait_for_end(played.start_over))
        await asyncio.sleep(0)
        assert waiting.done()
        end = await waiting
        assert end is not None
        assert end.cause is Cause.NO_MORE_EXPECTED

    asyncio.run(claims())


def test_one_that_was_interrupted_without_newer_parameters_starts_over_where_nobody_else_sends_any() -> None:
    async def claims() -> None:
        played = Played(workers=1)
        played.collector.begin(1, None)
        played.collector.completed(played.workers[0], 0, interrupted=True)
        waiting = asyncio.ensure_future(played.collector.wait_for_end(played.start_over))
        await asyncio.sleep(0)
        assert played.again == [0]
        assert played.push(played.join("worker-0"), 0)
        assert await waiting is not None

    asyncio.run(claims())


def test_an_interruption_by_newer_parameters_is_no_arrival() -> None:
    async def claims() -> None:
        played = Played(workers=2)
        first, other = played.workers
        played.collector.begin(1, None)
        assert played.push(first, 0)
        assert await played.collector.wait_for_end(played.start_over) is not None
        played.collector.completed(other, 0, interrupted=True)
        with ThreadPoolExecutor(1) as compute:
            _, arrivals = await played.collector.finish(compute)
        assert [arrival.worker for arrival in arrivals] == [first.number]

    asyncio.run(claims())


@pytest.mark.parametrize("fate", [Fate.REJECTED, Fate.LOST])
def test_workers_that_start_over_are_still_compared_with_what_is_usual(fate: Fate) -> None:
    async def claims() -> None:
        played = Played(workers=1)
        await played.train(3)
        played.collector.begin(1, None)
        played.collector.failed(played.workers[0], 3, fate)
        waiting = asyncio.ensure_future(played.collector.wait_for_end(played.start_over))
        while not played.again:
            await asyncio.sleep(0)
        assert not played.push(played.join("worker-0"), 3, 1e20)
        played.collector.stop()
        await waiting

    asyncio.run(claims())
