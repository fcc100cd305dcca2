"""A TCP proxy between a client and a server, which can delay, stall, swallow, reset and refuse connections."""

import asyncio
import random
import socket
import time
from contextlib import suppress
from enum import Enum

CHUNK_BYTES = 2**18
CHUNKS = 64  # on their way in one direction of a connection; beyond that the sender has to wait, as with TCP
PORTS = range(20_000, 32_000)  # below those that systems give to whoever asks for a free one


class Direction(Enum):
    """Of what is sent, as the client sees it."""

    UP = "up"
    DOWN = "down"


class Ports:
    """Ports that nobody uses, and that nobody gets who asks for a free one: they can be used again and again."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._drawn: set[int] = set()  # whoever uses one may not have begun to, or be restarting

    def draw(self) -> int:
        """Another port."""
        while True:
            port = self._rng.choice(PORTS)
            with socket.socket() as probe, suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                if port not in self._drawn:
                    self._drawn.add(port)
                    return port


class Link:
    """The way from a client to a server. It hands on what is sent, unless the nemesis has changed it."""

    def __init__(self, client: str, port: int, server_port: int) -> None:
        self.client, self.port, self._server_port = client, port, server_port
        self.delay = 0.0  # seconds, each way
        self._open = {direction: asyncio.Event() for direction in Direction}
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()
        for gate in self._open.values():
            gate.set()

    @property
    def target(self) -> str:
        """Where the client connects to."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Accept connections, unless it does already because two faults met on it."""
        async with self._starting:
            if self._server is None:
                self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=CHUNK_BYTES)

    async def refuse(self) -> None:
        """Refuse connections, until it is started again."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self.reset()

    async def close(self) -> None:
        """End, with all connections."""
        await self.refuse()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def reset(self) -> None:
        """Reset all connections."""
        for writer in self._writers:
            raw: socket.socket | None = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:  # closing it then sends RST
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()
        for connection in self._connections:
            connection.cancel()

    def stall(self, directions: set[Direction]) -> None:
        """Hand on nothing in these directions, until `flow`. Connections are accepted, and stay open."""
        for direction in directions:
            self._open[direction].clear()

    def flow(self) -> None:
        """Hand on everything again, what was held up first."""
        for gate in self._open.values():
            gate.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._writers.add(writer)
        onwards: asyncio.StreamWriter | None = None
        try:
            with suppress(OSError, asyncio.CancelledError):
                answers, onwards = await asyncio.open_connection("127.0.0.1", self._server_port, limit=CHUNK_BYTES)
                self._writers.add(onwards)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._carry(reader, onwards, Direction.UP))
                    group.create_task(self._carry(answers, writer, Direction.DOWN))
        except* OSError:
            pass  # one end is gone, and now the other one is told
        finally:
            self._connections.discard(task)
            for end in filter(None, (writer, onwards)):
                self._writers.discard(end)
                end.transport.abort() if end is onwards else end.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        """Hand on what is sent in one direction, each byte after the delay that it met."""
        underway: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS)

        async def deliver() -> None:
            while True:
                due, data = await underway.get()
                if (wait := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                await self._open[direction].wait()
                if not data:
                    raise ConnectionResetError("the other end has closed the connection")
                writer.write(data)
                await writer.drain()

        delivering = asyncio.ensure_future(deliver())
        try:
            while not delivering.done():
                data = await reader.read(CHUNK_BYTES)
                await asyncio.wait(
                    [delivering, put := asyncio.ensure_future(underway.put((time.monotonic() + self.delay, data)))],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not put.done():
                    put.cancel()
                if not data:
                    break
            await delivering
        finally:
            delivering.cancel()
