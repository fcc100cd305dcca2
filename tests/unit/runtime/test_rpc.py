"""The gate and the calls behind it, on a real server of a small service: gRPC's own health service."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from dbw_runtime.failure import StatusError, invalid_value, reason_of
from dbw_runtime.gate import CallLimits, Gate
from dbw_runtime.rpc import Call, add_service, handlers
from dbw_runtime.security import ANYBODY

SERVICE: Any = health_pb2.DESCRIPTOR.services_by_name["Health"]
LIMITS = CallLimits()
UNAVAILABLE, NOT_READY = grpc.StatusCode.UNAVAILABLE, "NOT_READY"
SERVING = HealthCheckResponse(status=HealthCheckResponse.SERVING)
# More than is sent to somebody who does not read; these bytes are a field that nobody knows.
LONG = HealthCheckResponse.FromString(b"\x7a\x80\x80\x80\x08" + bytes(2**24))


class Service:
    """Answers when it is allowed to."""

    def __init__(self) -> None:
        self.answers, self.asked = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None
        self.watched = SERVING

    async def check(self, request: HealthCheckRequest, call: Call) -> HealthCheckResponse:  # noqa: ARG002
        self.asked.set()
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return SERVING

    async def list(self, request: Any, call: Call) -> None:
        raise NotImplementedError

    async def watch(self, request: HealthCheckRequest, call: Call) -> None:  # noqa: ARG002
        await call.write(self.watched)
        await call.wait(self.answers.wait())


def translate(error: Exception) -> StatusError | None:
    return invalid_value("service", str(error)) if isinstance(error, LookupError) else None


class World:
    """A service behind a gate, and a client of it."""

    def __init__(self, channel: grpc.aio.Channel, limits: CallLimits) -> None:
        self.refusals: Counter[str] = Counter()
        self.gate = Gate(ANYBODY, limits, lambda reason: self.refusals.update([reason]))
        self.service = Service()
        encode, decode = HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        self.check = channel.unary_unary("/grpc.health.v1.Health/Check", encode, decode)
        self.check_bytes: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        self.watch = channel.unary_stream("/grpc.health.v1.Health/Watch", encode, decode)


def serve(claims: Callable[[World], Awaitable[None]], is_open: bool = True, limits: CallLimits = LIMITS) -> None:
    async def run() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        options = [("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            world = World(channel, limits)
            world.gate.is_open = is_open
            add_service(server, SERVICE, handlers(SERVICE, world.service, world.gate, translate))
            await server.start()
            await claims(world)
            await server.stop(None)

    asyncio.run(run())


async def read_all(call: grpc.aio.UnaryStreamCall[Any, Any]) -> None:
    async for _ in call:
        pass


async def failure(call: Awaitable[object]) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), reason_of(caught.value)


def test_calls_are_refused_until_the_gate_opens_and_when_it_has_closed() -> None:
    async def claims(world: World) -> None:
        assert await failure(world.check(HealthCheckRequest())) == (UNAVAILABLE, NOT_READY)
        world.gate.is_open = True
        world.service.answers.set()
        assert await world.check(HealthCheckRequest()) == SERVING
        await world.gate.drain(0.0)
        assert await failure(world.check(HealthCheckRequest())) == (UNAVAILABLE, NOT_READY)
        assert await failure(world.watch(HealthCheckRequest()).read()) == (UNAVAILABLE, NOT_READY)
        assert world.refusals == {NOT_READY: 3}

    serve(claims, is_open=False)


def test_a_call_that_is_being_served_may_finish() -> None:
    async def claims(world: World) -> None:
        call = world.check(HealthCheckRequest())
        await world.service.asked.wait()
        draining = asyncio.ensure_future(world.gate.drain(86_400))
        assert await failure(world.check(HealthCheckRequest())) == (UNAVAILABLE, NOT_READY)
        assert not draining.done()
        world.service.answers.set()
        assert await call == SERVING
        await draining

    serve(claims)


def test_a_call_that_takes_too_long_is_cut_off_and_knows_why() -> None:
    async def claims(world: World) -> None:
        call = world.check(HealthCheckRequest())
        await world.service.asked.wait()
        await world.gate.drain(0.0)
        assert await failure(call) == (UNAVAILABLE, NOT_READY)
        assert (world.gate.calls, world.gate.tasks) == ({}, set())

    serve(claims)


def test_a_stream_that_waits_ends_at_once() -> None:
    async def claims(world: World) -> None:
        call = world.watch(HealthCheckRequest())
        assert await call.read() == SERVING
        await world.gate.drain(86_400)
        assert await failure(call.read()) == (UNAVAILABLE, NOT_READY)

    serve(claims)


def test_a_stream_that_is_cut_off_in_its_first_response_ends_with_the_reason() -> None:
    async def claims(world: World) -> None:
        world.service.watched = LONG
        call = world.watch(HealthCheckRequest(), timeout=60.0)
        await call.initial_metadata()
        await world.gate.drain(0.0)
        assert await failure(read_all(call)) == (UNAVAILABLE, NOT_READY)

    serve(claims)


def test_there_are_not_more_calls_than_allowed() -> None:
    async def claims(world: World) -> None:
        first = world.check(HealthCheckRequest())
        await world.service.asked.wait()
        refused = failure(world.check(HealthCheckRequest()))
        assert await refused == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
        world.service.answers.set()
        assert await first == SERVING
        assert await world.check(HealthCheckRequest()) == SERVING

    serve(claims, limits=CallLimits(calls=1))


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (LookupError("unknown"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE"),
        (invalid_value("service", "unknown"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE"),
        (ZeroDivisionError(), grpc.StatusCode.INTERNAL, "BUG"),
    ],
    ids=["of the service", "a status", "a bug"],
)
def test_an_error_becomes_the_status_that_it_means(error: Exception, code: grpc.StatusCode, reason: str) -> None:
    async def claims(world: World) -> None:
        world.service.error = error
        world.service.answers.set()
        assert await failure(world.check(HealthCheckRequest())) == (code, reason)

    serve(claims)


def test_bytes_that_are_no_message_are_refused() -> None:
    async def claims(world: World) -> None:
        assert await failure(world.check_bytes(b"\xff")) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE")

    serve(claims)


def test_a_client_that_goes_away_leaves_nothing_behind() -> None:
    async def claims(world: World) -> None:
        call = world.check(HealthCheckRequest())
        await world.service.asked.wait()
        (task,) = world.gate.tasks
        call.cancel()
        await asyncio.wait([task])
        assert (world.gate.calls, world.gate.tasks) == ({}, set())
        assert world.refusals == {}

    serve(claims)


def test_a_client_that_goes_away_while_headers_are_sent_leaves_no_error_in_the_log() -> None:
    sent = asyncio.Event()

    class Context:
        """What gRPC gives us of a call whose client goes away."""

        async def send_initial_metadata(self, _: object) -> None:
            await sent.wait()
            raise grpc.aio.InternalError("the client has gone")

    async def accept() -> None:
        gate = Gate(ANYBODY, LIMITS, lambda _: None)
        gate.is_open = True
        await Call(Context(), gate, is_stream=False).accept()

    async def run() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: problems.append(about))
        accepting = asyncio.ensure_future(accept())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is being sent
        accepting.cancel()
        await asyncio.sleep(0)
        sent.set()
        await asyncio.wait([accepting])
        assert accepting.cancelled()
        del accepting
        gc.collect()
        assert problems == []

    asyncio.run(run())


def test_a_client_that_does_not_wait_for_its_answer_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def claims(_: World) -> None:
        gone = grpc.aio.InternalError("the status could not be sent"), asyncio.CancelledError()
        for error in (*gone, ZeroDivisionError("a bug")):
            logging.getLogger("grpc._cython.cygrpc").error("what gRPC says: %s", error, exc_info=error)

    serve(claims)
    assert caplog.messages == ["what gRPC says: a bug"]
