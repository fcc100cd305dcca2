"""The endpoint that Prometheus scrapes, and that says whether a process without a gRPC server is healthy."""

import asyncio
import os
import socket
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.exposition import choose_encoder

from dbw_runtime.configuration import WrongValueError

# Nobody who connects may keep more than this: a place among the connections, which the next one takes if there is none
# left, for some seconds, and room for the head of a request.
MAX_CONNECTIONS, SECONDS, MAX_HEAD_BYTES = 32, 30.0, 16 * 2**10
HEAD_ENDS = b"\r\n\r\n"
CLOSE_SECONDS = 5.0  # a scrape under way may take long


def split_address(name: str, address: str) -> tuple[str, int]:
    """Host and port of an address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise WrongValueError(name, address, "HOST:PORT")
    return host.strip("[]"), int(port)


class MetricsServer:
    """An HTTP server for metrics, in a thread with an event loop of its own. It answers one request a connection."""

    def __init__(self, host: str, port: int, application: Any) -> None:  # noqa: ANN401 (a WSGI application)
        self._application = application
        self._connections: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._listener = _listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._loop, self._stopping = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve_all())

    async def _serve_all(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._listener, limit=MAX_HEAD_BYTES)
        await self._stopping.wait()
        server.close()

    def close(self) -> None:
        """Stop, and let others use the address."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(CLOSE_SECONDS)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = None
        try:
            with suppress(OSError, TimeoutError, asyncio.CancelledError, asyncio.IncompleteReadError):
                async with asyncio.timeout(SECONDS):
                    await self._answer(reader, writer)
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()  # also what was not read of an answer

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            head = await reader.readuntil(HEAD_ENDS)
            environment = _environment(head.decode("latin-1"))
        except (asyncio.LimitOverrunError, ValueError):
            response = _response("400 Bad Request", [], b"send an HTTP request\n")
        else:
            response = self._respond(environment)
        writer.write(response)
        writer.close()
        await writer.wait_closed()

    def _respond(self, environment: dict[str, Any]) -> bytes:
        """What the application answers. Requests wait for each other here, so that none costs more than one thread."""
        head: list[Any] = []
        body = b"".join(self._application(environment, lambda *arguments: head.extend(arguments)))
        status, headers = head
        return _response(status, headers, body)


def _listen(host: str, port: int) -> socket.socket:
    family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        if os.name == "posix":  # elsewhere it would let two programs have the same address
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def _environment(head: str) -> dict[str, Any]:
    """What a WSGI application is told of a request, as far as ours look at it."""
    request, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    method, target, _ = request.split(" ")
    path, _, query = target.partition("?")
    headers = (line.partition(":") for line in lines)
    fields = {f"HTTP_{name.upper().replace('-', '_')}": value.strip() for name, _, value in headers}
    try:
        choose_encoder(fields.get("HTTP_ACCEPT", ""))
    except Exception as error:  # of any kind, where a version is not made of numbers
        raise ValueError("the header Accept makes no sense") from error
    return {**fields, "REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query}


def _response(status: str, headers: Iterable[tuple[str, str]], body: bytes) -> bytes:
    own = [("Content-Length", str(len(body))), ("Connection", "close")]
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in [*headers, *own])]
    return "\r\n".join(lines).encode("latin-1") + HEAD_ENDS + body


def serve_metrics(
    address: str, registry: CollectorRegistry, problem: Callable[[], str | None] = lambda: None
) -> MetricsServer:
    """Serve metrics at an address, and what the process itself takes; raises OSError if the address is taken.

    /healthz answers 503 with the text of `problem` as long as there is one.
    """
    host, port = split_address("metrics_listen", address)
    ProcessCollector(registry=registry)
    try:
        return MetricsServer(host, port, _with_health(make_wsgi_app(registry), problem))
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error


def _with_health(metrics: Any, problem: Callable[[], str | None]) -> Any:  # noqa: ANN401 (WSGI applications)
    def application(environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:  # noqa: ANN401
        if environment["PATH_INFO"] != "/healthz":
            answer: Iterable[bytes] = metrics(environment, start_response)
            return answer
        text = problem()
        start_response("200 OK" if text is None else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [f"{text or 'healthy'}\n".encode()]

    return application
