"""The client for programs with asyncio."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar, Unpack

import grpc

from dbw.v1.controller_pb2 import CoordinateRequest, DeleteJobRequest, ExportJobStateRequest, GetJobRequest
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.job_pb2 import JobSpec
from dbw_controller.client.conversation import Conversation, Link, Summary
from dbw_controller.client.settings import ATTACH_SECONDS, ClientSettings, delays, join_state, split_state
from dbw_controller.client.training import Training
from dbw_runtime.failure import reason_of

Item = TypeVar("Item")


class AsyncDbwClient(ClientSettings):
    """A controller, for parameter servers with asyncio."""

    def job(
        self, name: str, workers: int | Sequence[int], spec: JobSpec | None = None, iteration: int = 0
    ) -> "AsyncTrainingJob":
        """Create a job, or attach to one, with `async with`: `workers` are alive, `iteration` is the next to begin."""
        return AsyncTrainingJob(self, self.conversation(name, workers, spec, iteration))


class AsyncTrainingJob(Training):
    """A job of a controller, for one event loop.

    Leaving its `async with` block deletes the job, because training is over; an exception keeps it, to be resumed.
    """

    def __init__(self, settings: ClientSettings, conversation: Conversation) -> None:
        super().__init__(settings, conversation)
        self._changed = asyncio.Event()
        self._creation: asyncio.Future[Any] | None = None  # CreateJob, of the last attempt to attach
        self._closed = False

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def open(self) -> None:
        """Connect to the controller, and wait for the first decision."""
        self._channel = self._connection.open_aio()
        self._stub: Any = ControllerServiceStub(self._channel)
        self._outbox: asyncio.Queue[CoordinateRequest | None] = asyncio.Queue()
        self._link = asyncio.create_task(self._stay_attached(), name=f"dbw {self.name}")
        await self._wait_for_decision()

    async def gradients(self, get: Callable[[], Awaitable[Item | None]]) -> AsyncIterator[Item]:
        """Wait for gradients with `get()`, until k have `arrived` or the deadline has passed and one has.

        Where none comes in time `get` is cancelled, which must not lose one: that of an `asyncio.Queue` does not.
        """
        while self.missing:
            gradient = None
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait.pause(self._elapsed)):
                    gradient = await get()
            if gradient is not None:
                yield gradient
            elif self._wait.remaining(self._elapsed) == 0:
                return

    async def end_iteration(self, **summary: Unpack[Summary]) -> int:
        """The iteration has ended; returns k of the next. `Summary` lists what it takes."""
        completed = self._conversation.summary(**self._completed(summary))
        request = self._conversation.end_iteration(completed, self._now())
        if request is not None:
            self._outbox.put_nowait(request)
        return await self._wait_for_decision()

    async def _wait_for_decision(self) -> int:
        await asyncio.sleep(0)  # lets what sends and receives go on, even where nothing else in the loop does
        with suppress(TimeoutError):
            async with asyncio.timeout(self._conversation.patience):
                while self._conversation.awaits_decision:
                    self._changed.clear()
                    await self._changed.wait()
        return self._begin_iteration()

    async def export_state(self, timeout: float = ATTACH_SECONDS) -> bytes | None:
        """All that the job has learnt, for a checkpoint; None if the controller cannot be reached."""
        request = ExportJobStateRequest(job=self.name)
        with self._warning("the state cannot be exported"):
            call = self._stub.ExportJobState(request, timeout=timeout, metadata=self._connection.metadata())
            return join_state([piece async for piece in call])
        return None

    async def import_state(self, state: bytes, timeout: float = ATTACH_SECONDS) -> bool:
        """Give the job an exported state, unless it has learnt from more iterations; returns whether that worked."""
        with self._warning("the state cannot be imported"):
            requests = split_state(state, self.name, self._conversation.session)
            metadata = self._connection.metadata()
            response = await self._stub.ImportJobState(requests, timeout=timeout, metadata=metadata)
            self._imported(response.job.decision)
            return True
        return False

    async def _stay_attached(self) -> None:
        while not self._closed:
            await asyncio.sleep(next(self._waits))
            try:
                if self._conversation.link is Link.REPLACED and not await self._may_take_back():
                    continue
                metadata = self._connection.metadata()
                request = self._conversation.create_request()
                creation = self._stub.CreateJob(request, timeout=ATTACH_SECONDS, metadata=metadata)
                self._creation = asyncio.ensure_future(creation)
                created = await self._creation
                self._outbox = asyncio.Queue()
                if (repeated := self._created(created)) is not None:
                    self._outbox.put_nowait(repeated)
                self._changed.set()
                async for response in self._stub.Coordinate(_requests(self._outbox), metadata=metadata):
                    self._waits = delays()
                    self._conversation.decided(response.decision, self._now())
                    self._changed.set()
                raise ConnectionError("the controller has ended the stream")
            except Exception as error:  # whatever it is, training goes on
                self._failed(error)
                self._changed.set()
            finally:
                self._outbox.put_nowait(None)  # ends what sends

    async def _may_take_back(self) -> bool:
        """Look whether the process that has taken the job over has gone."""
        request, metadata = GetJobRequest(job=self.name), self._connection.metadata()
        try:
            job = (await self._stub.GetJob(request, timeout=ATTACH_SECONDS, metadata=metadata)).job
        except grpc.RpcError as error:
            if reason_of(error) != "JOB_NOT_FOUND":
                raise
            job = None
        return self._conversation.may_take_back(job, self._now())

    async def close(self, delete: bool = False) -> None:
        """Disconnect for good; the controller keeps the job unless `delete` is set."""
        if self._closed:
            return
        self._closed = True
        try:
            if delete and self._creation is not None:  # it has perhaps begun another session already
                await asyncio.wait([self._creation], timeout=self._settings.end_seconds)
        finally:
            self._link.cancel()
        await asyncio.wait([self._link])  # whose cancellation is not this task's
        if delete and not self._conversation.link.is_others:  # then it is the job of another process
            request = DeleteJobRequest(job=self.name, session=self._conversation.session, allow_missing=True)
            with self._warning("the job cannot be deleted"):
                metadata = self._connection.metadata()
                await self._stub.DeleteJob(request, timeout=self._settings.end_seconds, metadata=metadata)
        await self._channel.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(delete=kind is None)


async def _requests(outbox: "asyncio.Queue[CoordinateRequest | None]") -> AsyncIterator[CoordinateRequest]:
    while (request := await outbox.get()) is not None:
        yield request
