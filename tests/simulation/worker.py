"""A worker as the parameter server sees it: the protocol of `dbw_ps.client`, without threads and without a model.

Its gradients have norms that tell workers and versions apart, so that it can be checked which of them were averaged.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from random import Random
from typing import Any

import grpc
import numpy as np

from dbw.v1 import parameter_server_pb2 as pb
from dbw.v1.parameter_server_pb2_grpc import ParameterServerServiceStub
from dbw.v1.sync_mode_pb2 import SYNC_MODE_PULL, SYNC_MODE_PUSH_INTERRUPT
from dbw_ps.client import FINAL
from dbw_runtime.backoff import backoff
from dbw_runtime.failure import reason_of
from tests.simulation.network import Network

CALL_SECONDS = 30.0
PIECES = 3
DRIBBLES = ((0, 1.0), (4, 1.0), (4, 3.0))  # how many bytes a piece has, and after how many seconds it comes
ELEMENTS = 39  # of `tests.models:tiny`
GARBAGE, LIE = 1e25, -1e9  # what is finite and wrong, as an element of a gradient and as a loss
MIN_USED = 3  # gradients that are right before one that is not


def element(worker: int, version: int) -> float:
    """What all elements of a gradient are."""
    return 0.01 * (1 + (7 * worker + 3 * version) % 11)


class SimulatedWorker:
    """Computes for random times, and does to its gradients what `misbehaviour` says, until that is over."""

    def __init__(self, name: str, address: str, network: Network, random: Random) -> None:
        self.name, self._random, self._loop = name, random, network.loop
        self._stub: Any = ParameterServerServiceStub(network.channel(address))  # type: ignore[call-overload]
        self._session: pb.JoinResponse | None = None
        self._newest = -1
        self._version: int | None = None  # of the parameters that it computes with
        self._since = 0.0
        self._news = asyncio.Event()
        self._streaming: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self.finished = False
        self.mean_seconds = random.choice([0.02, 0.05, 0.2])
        self.stuck_until = 0.0  # its computation stands still, while heartbeats go on
        self.idle_until = 0.0  # it does not begin to compute, and its heartbeats say so
        self.stalled_until = 0.0  # its uploads stand still in their middle
        self.dribbles_until = 0.0  # its uploads are tiny pieces, or empty ones:
        self._dribble = random.choice(DRIBBLES)
        self._is_dribbling = False  # an upload is under way that does, to its end
        self.sends_garbage = False  # its next gradient is wrong, though finite, and
        self.lies = False  # says a loss that is wrong: once there were others before it, to compare with
        self.garbage_until = 0.0  # all its gradients are wrong, as long as the server knows `others_are_known`
        self.others_are_known: Callable[[], bool] = lambda: False
        self._used = 0  # gradients of this session, since the last such

    @property
    def is_well(self) -> bool:
        """Whether it does its work as it should."""
        troubles = self.stuck_until, self.idle_until, self.stalled_until, self.dribbles_until, self.garbage_until
        return max(troubles) <= self._loop.time() and not self._is_dribbling

    async def run(self) -> None:
        """Work until training is over."""
        delays = backoff(0.05, 2.0, self._random.uniform)
        while not self.finished:
            try:
                await self._work()
            except (grpc.aio.AioRpcError, ConnectionError) as error:
                if reason_of(error) in FINAL:
                    raise
                await asyncio.sleep(next(delays))
            else:
                delays = backoff(0.05, 2.0, self._random.uniform)
            finally:
                self._forget_session()

    def _forget_session(self) -> None:
        self._session, self._newest, self._version, self._used = None, -1, None, 0
        for task in (self._streaming, self._beating):
            if task is not None:
                task.cancel()

    async def _work(self) -> None:
        """Join, and work until the session or the training is over."""
        self._session = session = await self._stub.Join(pb.JoinRequest(worker_id=self.name), timeout=CALL_SECONDS)
        self._beating = asyncio.ensure_future(self._beat(session))
        pulls = session.sync_mode == SYNC_MODE_PULL
        if not pulls:
            self._streaming = asyncio.ensure_future(self._subscribe(session))
        known = None
        while True:
            known = await (self._pull(session, known) if pulls else self._newer(known))
            if self.finished:
                return
            await self._iterate(session, known)

    async def _subscribe(self, session: pb.JoinResponse) -> None:
        try:
            async for message in self._stub.Subscribe(pb.SubscribeRequest(session=session.session)):
                if message.HasField("header"):
                    self._saw(message.header)
        finally:
            self._news.set()

    def _saw(self, header: pb.ParametersHeader) -> None:
        self.finished |= header.finished
        self._newest = max(self._newest, header.version)
        self._news.set()

    async def _newer(self, known: int | None) -> int:
        assert self._streaming is not None
        while not self.finished and self._newest <= (-1 if known is None else known):
            if self._streaming.done():
                self._streaming.result()  # raises what ended it
                raise ConnectionError("the server has ended the stream")
            self._news.clear()
            await self._news.wait()
        return self._newest

    async def _pull(self, session: pb.JoinResponse, known: int | None) -> int:
        request = pb.PullParametersRequest(session=session.session, known_version=known)
        header = pb.ParametersHeader()
        async for message in self._stub.PullParameters(request):
            if message.HasField("header"):
                header = message.header
        self._saw(header)
        return header.version

    async def _beat(self, session: pb.JoinResponse) -> None:
        while True:
            await asyncio.sleep(session.heartbeat_interval_seconds)
            request = pb.HeartbeatRequest(session=session.session)
            if self._version is not None:
                request.computing_version, request.computing_seconds = self._version, self._loop.time() - self._since
            with suppress(grpc.aio.AioRpcError):
                answer = await self._stub.Heartbeat(request, timeout=CALL_SECONDS)
                self.finished |= answer.finished
                self._news.set()

    async def _iterate(self, session: pb.JoinResponse, version: int) -> None:
        while self._loop.time() < self.idle_until:
            await asyncio.sleep(1.0)
        self._version, self._since = version, self._loop.time()
        seconds = self._random.expovariate(1 / self.mean_seconds)
        interrupts = session.sync_mode == SYNC_MODE_PUSH_INTERRUPT
        while (left := max(self._since + seconds, self.stuck_until) - self._loop.time()) > 0:
            if interrupts and self._newest > version:
                break
            await asyncio.sleep(min(left, 0.05))
        seconds, self._version = self._loop.time() - self._since, None
        if interrupts and self._newest > version:
            await self._notify(session, version, seconds, interrupted=True)
        elif self._newest > version:
            await self._notify(session, version, seconds, interrupted=False)
        else:
            await self._push(session, version, seconds)

    async def _notify(self, session: pb.JoinResponse, version: int, seconds: float, interrupted: bool) -> None:
        request = pb.NotifyCompletionRequest(
            session=session.session, version=version, interrupted=interrupted, compute_seconds=seconds
        )
        await self._stub.NotifyCompletion(request, timeout=CALL_SECONDS)

    async def _push(self, session: pb.JoinResponse, version: int, seconds: float) -> None:
        value, loss = element(session.worker, version), 1 / (version + 1)
        if self._used >= MIN_USED and (self.sends_garbage or self.lies):
            value, loss = GARBAGE if self.sends_garbage else value, LIE if self.lies else loss
            self.sends_garbage, self.lies, self._used = False, False, 0
        if self._loop.time() < self.garbage_until and self.others_are_known():
            value = GARBAGE
        data = np.full(ELEMENTS, value, np.float32).tobytes()
        header = pb.GradientHeader(
            session=session.session, version=version, total_bytes=len(data), loss=loss, compute_seconds=seconds
        )
        turn = asyncio.Event()
        call = self._stub.PushGradient(self._requests(header, data, turn))
        response, headers = asyncio.ensure_future(call), asyncio.ensure_future(call.initial_metadata())
        try:
            await asyncio.wait([response, headers], return_when=asyncio.FIRST_COMPLETED)
            turn.set()
            self._used += (await response).outcome == pb.GRADIENT_OUTCOME_USED
        finally:
            self._is_dribbling = False
            headers.cancel()
            response.cancel()

    async def _requests(
        self, header: pb.GradientHeader, data: bytes, turn: asyncio.Event
    ) -> AsyncIterator[pb.PushGradientRequest]:
        yield pb.PushGradientRequest(header=header)
        await turn.wait()
        offset, end, size, pause = 0, len(data), -(-len(data) // PIECES // 4) * 4, 0.0
        self._is_dribbling = self._loop.time() < self.dribbles_until
        if self._is_dribbling:
            (size, pause), end = self._dribble, end - 4  # it never sends all of it
        while offset < end:
            while self._loop.time() < self.stalled_until:
                await asyncio.sleep(1.0)
            if pause:
                await asyncio.sleep(pause)
            yield pb.PushGradientRequest(offset=offset, data=data[offset : offset + size])
            offset += size
