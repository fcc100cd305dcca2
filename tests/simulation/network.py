"""gRPC between simulated processes: real handlers and stubs, with messages that take their time or get stuck.

A stall is what a black hole looks like through TCP: what was sent arrives when it ends. One that is longer than the
keepalive breaks all calls, and so does a reset, or the death of a process.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from contextvars import Context
from enum import Enum
from random import Random
from typing import Any, NamedTuple

import grpc
from grpc.aio import EOF, AioRpcError, Metadata

from tests.simulation.loop import PROCESS, Process, VirtualLoop

LATENCY = (0.0002, 0.003)  # seconds that a message takes, at least and at most
REPEATED_AFTER = (0.0, 2.0)  # seconds after which a proxy sends a request again, at least and at most
NOT_REPEATED = ("Join", "CreateJob")  # a proxy must not repeat what begins a session: that would end the first one
CONNECT_SECONDS, KEEPALIVE_SECONDS = 5.0, 20.0
WINDOW = 4  # messages that a sender may be ahead of its receiver


class Direction(Enum):
    """From whom to whom."""

    UP = "to the server"
    DOWN = "to the client"


class Link:
    """The way between a process and an address."""

    def __init__(self) -> None:
        self.delay = 0.0  # seconds in each direction, beside the usual latency
        self.stalled_until = dict.fromkeys(Direction, 0.0)
        self.repeats_until = 0.0  # a proxy on the way sends single requests twice


class Listener(NamedTuple):
    """Who serves an address."""

    process: Process
    handlers: Any  # grpc.GenericRpcHandler


class Network:
    """All links and calls."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop, self.random = loop, random
        self._listeners: dict[str, Listener] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self.calls: dict[VirtualCall, None] = {}  # in the order in which they began

    def listen(self, address: str, listener: Listener) -> None:
        """Serve an address."""
        self._listeners[address] = listener

    def listener(self, address: str) -> Listener | None:
        """Who serves an address, if anybody does."""
        found = self._listeners.get(address)
        return found if found is not None and found.process.is_alive else None

    def link(self, process: str, address: str) -> Link:
        """The link between a process and an address."""
        return self._links.setdefault((process, address), Link())

    def healthy(self, process: str, address: str) -> bool:
        """Whether messages get through in no more than the usual time."""
        link = self.link(process, address)
        return link.delay == 0 and max(link.stalled_until.values()) <= self.loop.time()

    def send(self, link: Link, direction: Direction, deliver: Callable[[], object], not_before: float = 0.0) -> float:
        """Do something at the other end of a link when it has got there; returns when that will be."""
        arrival = max(self.loop.time() + self.random.uniform(*LATENCY) + link.delay, not_before)
        arrival = max(arrival, link.stalled_until[direction])
        self.loop.call_at(arrival, deliver, context=Context())  # of no process: packets move on if one is paused
        return arrival

    def stall(self, process: str, address: str, directions: set[Direction], seconds: float) -> None:
        """Let messages get stuck for some time."""
        link, now = self.link(process, address), self.loop.time()
        for direction in directions:
            link.stalled_until[direction] = max(link.stalled_until[direction], now + seconds)
        if seconds > KEEPALIVE_SECONDS:
            self.loop.call_later(KEEPALIVE_SECONDS, self.reset, process, address)

    def reset(self, process: str, address: str) -> None:
        """Break all calls over a link."""
        for call in list(self.calls):
            if (call.client.name, call.address) == (process, address):
                call.break_off("the connection was reset")

    def died(self, process: Process) -> None:
        """Break the calls of a process that is gone; its peers learn of it as soon as messages get there."""
        for call in list(self.calls):
            if process is call.client:
                self.send(call.link, Direction.UP, call.break_off)
            elif call.server is process:
                self.send(call.link, Direction.DOWN, call.break_off)

    def channel(self, address: str) -> "Channel":
        """How the process that asks reaches an address."""
        process = PROCESS.get()
        assert process is not None
        return Channel(self, process, address)


class Pipe:
    """One direction of a call."""

    def __init__(self, network: Network, link: Link, direction: Direction) -> None:
        self._network, self._link, self._direction = network, link, direction
        self._items: asyncio.Queue[Any] = asyncio.Queue()
        self._credit = asyncio.Semaphore(WINDOW)
        self._last = 0.0

    async def send(self, item: Any) -> None:
        """Send a message, once the receiver is not too far behind."""
        await self._credit.acquire()
        self._put(item)

    def finish(self, status: AioRpcError | None = None) -> None:
        """Send what comes after the last message."""
        self._put(Finished(status))

    def break_off(self, status: AioRpcError) -> None:
        """Let the receiver know at once."""
        while not self._items.empty():
            self._items.get_nowait()
        self._items.put_nowait(Finished(status))

    def _put(self, item: Any) -> None:
        deliver = lambda: self._items.put_nowait(item)  # noqa: E731
        self._last = self._network.send(self._link, self._direction, deliver, self._last)

    async def receive(self) -> Any:
        """The next message, or what came after the last one, again and again."""
        item = await self._items.get()
        if isinstance(item, Finished):
            self._items.put_nowait(item)
        else:
            self._credit.release()
        return item


class Finished(NamedTuple):
    """What comes after the last message of a pipe."""

    status: AioRpcError | None


class AbortedCallError(BaseException):
    """What `abort` raises in a handler; gRPC's own is not an Exception that handlers catch, either."""


class VirtualCall:
    """One rpc."""

    def __init__(self, network: Network, client: Process, address: str, path: str, timeout: float | None) -> None:
        self.network, self.client, self.address, self._path = network, client, address, path
        self.link = network.link(client.name, address)
        self.server: Process | None = None
        self.up, self.down = Pipe(network, self.link, Direction.UP), Pipe(network, self.link, Direction.DOWN)
        self.headers: asyncio.Future[None] = network.loop.create_future()
        self._handler: asyncio.Task[None] | None = None
        self._timer: asyncio.Handle | None = None
        network.calls[self] = None
        if timeout is not None:
            too_late = error(grpc.StatusCode.DEADLINE_EXCEEDED, "too late")
            self._timer = network.loop.call_later(timeout, self.end, too_late)
        if max(self.link.stalled_until.values()) > network.loop.time() + CONNECT_SECONDS:
            network.loop.call_later(CONNECT_SECONDS, self.break_off, "the connection timed out")
        else:
            network.send(self.link, Direction.UP, self._open)

    def _open(self) -> None:
        listener = self.network.listener(self.address)
        if listener is None:
            self.break_off("nobody listens")
        elif self in self.network.calls:
            self.server = listener.process
            self._handler = self.network.loop.spawn(listener.process, self._serve(listener))

    async def _serve(self, listener: Listener) -> None:
        method = listener.handlers.service(Details(self._path, ()))
        assert method is not None, self._path
        context = CallContext(self)
        status = None
        try:
            request = None if method.request_streaming else await self.up.receive()
            kinds = [("unary", "stream")[flag] for flag in (method.request_streaming, method.response_streaming)]
            response = await getattr(method, "_".join(kinds))(request, context)
            if response is not None:
                await self.down.send(response)
        except AbortedCallError:
            status = context.status
        self.down.finish(status)

    def break_off(self, why: str = "the other side is gone") -> None:
        """End the call on both sides, because the connection has ended."""
        self.end(error(grpc.StatusCode.UNAVAILABLE, why))

    def end(self, status: AioRpcError) -> None:
        """End the call on both sides."""
        if self in self.network.calls:
            self.close()
            self.down.break_off(status)
            self.accept()

    def accept(self) -> None:
        """Let the client know that its requests are being read, or never will be."""
        if not self.headers.done():
            self.headers.set_result(None)

    def close(self) -> None:
        """Forget the call, which has ended; its handler learns of it, unless it has ended too."""
        self.network.calls.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._handler is None or not self._handler.done():
            self.network.send(self.link, Direction.UP, self._cancel)

    def _cancel(self) -> None:
        if self._handler is not None:
            self._handler.cancel()


class Details(NamedTuple):
    """grpc.HandlerCallDetails."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...]


class CallContext:
    """What a handler of ours needs of grpc.aio.ServicerContext."""

    def __init__(self, call: VirtualCall) -> None:
        self._call = call
        self.status: AioRpcError | None = None

    async def read(self) -> Any:
        """The next request."""
        item = await self._call.up.receive()
        return EOF if isinstance(item, Finished) else item

    async def write(self, response: bytes) -> None:
        """Send a response."""
        await self._call.down.send(response)

    async def send_initial_metadata(self, _: object) -> None:
        """Send the headers."""
        call = self._call
        call.network.send(call.link, Direction.DOWN, call.accept)

    async def abort(self, code: grpc.StatusCode, details: str, trailers: Any) -> None:
        """End the call with an error."""
        self.status = error(code, details, trailers)
        raise AbortedCallError

    def peer(self) -> str:
        """Who calls."""
        return self._call.client.name

    def invocation_metadata(self) -> None:
        """No tokens here."""


def error(code: grpc.StatusCode, details: str, trailers: Any = ()) -> AioRpcError:
    """What a caller gets to see."""
    return AioRpcError(code, Metadata(), Metadata(*trailers), details)


class Channel:
    """What generated stubs need of grpc.aio.Channel."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self._network, self._process, self._address = network, process, address

    def _method(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: object
    ) -> "Callable[..., ClientCall]":
        def begin(request: Any, timeout: float | None = None, **_: object) -> ClientCall:
            call = VirtualCall(self._network, self._process, self._address, path, timeout)
            return ClientCall(call, request, request_serializer, response_deserializer)

        return begin

    unary_stream = stream_unary = stream_stream = _method

    def unary_unary(self, path: str, *arguments: Any, **named: Any) -> "Callable[..., ClientCall]":
        """A method whose requests a proxy may repeat."""
        begin = self._method(path, *arguments, **named)
        link, loop = self._network.link(self._process.name, self._address), self._network.loop

        async def repeat(request: Any) -> None:
            with suppress(AioRpcError):
                await begin(request)

        def begin_and_repeat(request: Any, timeout: float | None = None, **_: object) -> ClientCall:
            if link.repeats_until > loop.time() and not path.endswith(NOT_REPEATED):
                later = self._network.random.uniform(*REPEATED_AFTER)
                loop.call_later(later, lambda: loop.spawn(self._process, repeat(request)))
            return begin(request, timeout)

        return begin_and_repeat

    async def close(self) -> None:
        """End all calls."""
        for call in [call for call in self._network.calls if call.client is self._process]:
            if call.address == self._address:
                call.end(error(grpc.StatusCode.CANCELLED, "the channel was closed"))


class ClientCall:
    """A call as its client sees it: to be awaited, or iterated over if it has many responses."""

    def __init__(
        self, call: VirtualCall, request: Any, serialise: Callable[[Any], bytes], parse: Callable[[bytes], Any]
    ) -> None:
        self._call, self._serialise, self._parse = call, serialise, parse
        self._sending = asyncio.ensure_future(self._send(request))

    async def _send(self, request: Any) -> None:
        up = self._call.up
        if isinstance(request, AsyncIterator):
            async for item in request:
                await up.send(self._serialise(item))
        else:
            for item in request if isinstance(request, Iterator) else [request]:
                await up.send(self._serialise(item))
        up.finish()

    async def initial_metadata(self) -> None:
        """Wait for the server's headers, or for the end of the call."""
        await self._call.headers

    def __await__(self) -> Any:
        return self._response().__await__()

    async def _response(self) -> Any:
        response = await self._next()
        if not isinstance(response, Finished):
            await self._next()
            return response
        raise response.status or error(grpc.StatusCode.INTERNAL, "there is no response")

    async def __aiter__(self) -> AsyncIterator[Any]:
        while not isinstance(response := await self._next(), Finished):
            yield response

    async def _next(self) -> Any:
        try:
            item = await self._call.down.receive()
        except BaseException:
            self._end()
            raise
        if not isinstance(item, Finished):
            return self._parse(item)
        self._end()
        if item.status is not None:
            raise item.status
        return item

    def _end(self) -> None:
        self._sending.cancel()
        self._call.close()

    def cancel(self) -> None:
        """End the call."""
        self._call.end(error(grpc.StatusCode.CANCELLED, "the client cancelled it"))
