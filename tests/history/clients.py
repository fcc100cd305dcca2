"""Clients that use one job at the same time: parameter servers that replace each other, readers and watchers."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import grpc

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import Membership
from dbw_controller.client import AsyncDbwClient
from dbw_runtime.failure import reason_of
from tests.history.recorder import RecordingStub
from tests.reports import whole_iteration

WORKERS = 4
CALL_SECONDS = 1.0
Step = Callable[[], Awaitable[object]]
LOST = ("SESSION_NOT_FOUND", "JOB_NOT_FOUND")


class RawServer:
    """A parameter server that does all that the contract allows, and some that it refuses, in a random order."""

    def __init__(self, stub: RecordingStub, job: str, random: Random) -> None:
        self._stub, self._job, self._random = stub, job, random
        self._session, self._iteration = "", 0
        self._is_replaced = False
        self._exported: list[pb.ExportJobStateResponse] = []

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            try:
                await self._step()
            except grpc.aio.AioRpcError as error:
                self._is_replaced |= reason_of(error) == "SESSION_REPLACED"
                if reason_of(error) is None:  # nobody is there
                    await asyncio.sleep(self._random.uniform(0.05, 0.3))
                elif reason_of(error) in LOST or self._random.random() < 0.3:  # or it goes on with a session that ended
                    self._session = ""
            await asyncio.sleep(self._random.choice([0.0, 0.0, 0.02]))

    async def _step(self) -> None:
        if not self._session:
            await asyncio.sleep(self._random.uniform(0.0, 0.3))
            await self._create()
            return
        steps: dict[Step, float] = {
            self._end: 10,
            self._end_on_stream: 6,
            self._end_twice: 4,
            self._repeat: 2,
            self._report: 2,
            self._read: 3,
            self._export: 1,
            self._import: 1,
            self._delete: 0.3,
        }
        (step,) = self._random.choices(list(steps), list(steps.values()))
        if self._is_replaced and self._random.random() < 0.2:
            step = self._delete  # as one does whose training is over
        await step()

    async def _create(self) -> None:
        iteration = self._random.choice([None, None, None, self._iteration, 0])
        workers = Membership(live_workers=WORKERS)
        request = pb.CreateJobRequest(job=self._job, membership=workers, iteration=iteration)
        response = await self._stub.CreateJob(request, timeout=CALL_SECONDS)
        self._is_replaced = False
        self._session, self._iteration = response.session, response.job.decision.iteration

    def _summary(self, iteration: int) -> pb.CoordinateRequest:
        request = whole_iteration(self._job, self._session, iteration, seed=self._random.randrange(1000))
        if self._random.random() < 0.2:
            request.membership.live_workers = self._random.randrange(1, WORKERS + 1)
        return request

    async def _ended(self, request: pb.CoordinateRequest) -> None:
        same = pb.EndIterationRequest.FromString(request.SerializeToString())
        response = await self._stub.EndIteration(same, timeout=CALL_SECONDS)
        self._iteration = max(self._iteration, response.decision.iteration)

    async def _streamed(self, *requests: pb.CoordinateRequest) -> None:
        async def outbox() -> Any:
            for request in requests:
                yield request

        async for response in self._stub.Coordinate(outbox(), timeout=CALL_SECONDS):
            self._iteration = max(self._iteration, response.decision.iteration)

    async def _end(self) -> None:
        await self._ended(self._summary(self._iteration))

    async def _end_on_stream(self) -> None:
        first = self._iteration
        await self._streamed(*(self._summary(first + i) for i in range(self._random.randrange(1, 4))))

    async def _end_twice(self) -> None:
        """The same request at the same time over both rpcs, as a client that has lost its patience with one."""
        request = self._summary(self._iteration)
        twins = [self._ended(request), self._ended(request) if self._random.random() < 0.5 else self._streamed(request)]
        for result in await asyncio.gather(*twins, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _repeat(self) -> None:
        await self._ended(self._summary(max(self._iteration - self._random.choice([1, 1, 3]), 0)))

    async def _report(self) -> None:
        arrivals = self._summary(self._iteration).arrivals
        request = pb.ReportRequest(job=self._job, session=self._session, arrivals=arrivals)
        await self._stub.Report(request, timeout=CALL_SECONDS)

    async def _read(self) -> None:
        await read(self._stub, self._job, self._iteration, self._random)

    async def _export(self) -> None:
        request = pb.ExportJobStateRequest(job=self._job)
        self._exported = [piece async for piece in self._stub.ExportJobState(request, timeout=CALL_SECONDS)]

    async def _import(self) -> None:
        if self._exported:
            header, data = self._exported[0].header, b"".join(piece.data for piece in self._exported)
            if self._random.random() < 0.2:
                data = data[:-1]
            first = pb.ImportJobStateRequest(job=self._job, session=self._session, header=header, data=data)
            first.only_if_newer = self._random.random() < 0.7
            await self._stub.ImportJobState(iter([first]), timeout=CALL_SECONDS)

    async def _delete(self) -> None:
        request = pb.DeleteJobRequest(job=self._job, session=self._session, allow_missing=self._random.random() < 0.5)
        await self._stub.DeleteJob(request, timeout=CALL_SECONDS)


async def read(stub: RecordingStub, job: str, iteration: int, random: Random) -> None:
    """Ask for the job, or for a decision around an iteration."""
    if random.random() < 0.5:
        await stub.GetJob(pb.GetJobRequest(job=job), timeout=CALL_SECONDS)
    else:
        request = pb.GetDecisionRequest(job=job, iteration=max(iteration + random.randrange(-3, 2), 0))
        await stub.GetDecision(request, timeout=CALL_SECONDS)


async def real_server(target: str, job: str, random: Random, stub: RecordingStub) -> None:
    """Parameter servers that use the client of this project, one after the other; some delete their job."""
    while True:
        training = AsyncDbwClient(target, deadline=0.3).job(job, workers=WORKERS)
        opening = asyncio.ensure_future(training.open())
        await asyncio.sleep(0)  # now it has a stub, and has not used it
        training._stub = stub
        try:
            await opening
            for _ in range(random.randrange(5, 30)):
                for worker in range(WORKERS):
                    training.arrived(random.uniform(0.5, 1.5), worker)
                squares = 3.0 * training.k
                await training.end_iteration(
                    loss=random.random(), learning_rate=0.1, mean_squared_norm=2.0, sum_squared_norms=squares
                )
                await asyncio.sleep(random.choice([0.0, 0.02]))
        finally:
            await training.close(delete=random.random() < 0.3)
        await asyncio.sleep(random.uniform(0.0, 0.5))


async def reader(stub: RecordingStub, job: str, random: Random) -> None:
    """Somebody who looks at the job, and an operator who deletes it now and then."""
    while True:
        with suppress(grpc.aio.AioRpcError):
            await read(stub, job, random.randrange(10), random)
            if random.random() < 0.01:
                await stub.DeleteJob(pb.DeleteJobRequest(job=job, allow_missing=True), timeout=CALL_SECONDS)
        await asyncio.sleep(random.uniform(0.0, 0.1))


async def watcher(stub: RecordingStub, job: str) -> None:
    """Somebody who watches the job, again and again."""
    while True:
        with suppress(grpc.aio.AioRpcError):
            await stub.WatchJob(pb.WatchJobRequest(job=job))
        await asyncio.sleep(0.1)
