"""A proxy that does to TCP connections what networks do: it stalls, swallows, delays and resets them."""

import asyncio
from contextlib import suppress
from enum import Enum


class Direction(Enum):
    """From whom to whom."""

    UP = "to the controller"
    DOWN = "to the client"


class TcpProxy:
    """In front of a server, whose port may change. Nothing is reordered or changed: TCP would not let that happen."""

    def __init__(self) -> None:
        self.server_port = 0
        self.delay = 0.0  # seconds, in each direction
        self._open = {direction: asyncio.Event() for direction in Direction}
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        for event in self._open.values():
            event.set()

    async def start(self) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Break all connections, and listen no more."""
        self._server.close()
        tasks = list(self._connections)
        self.reset()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stall(self, *directions: Direction) -> None:
        """Hold back what is sent in these directions until `flow`."""
        for direction in directions:
            self._open[direction].clear()

    def flow(self) -> None:
        """Hand everything on again, as it came."""
        self.delay = 0.0
        for event in self._open.values():
            event.set()

    def reset(self) -> None:
        """Break all connections; what is held back is lost."""
        for writers in self._connections.values():
            for writer in writers:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = [writer]
        try:
            with suppress(OSError, asyncio.CancelledError):  # nobody waits for this task but `stop`
                above = await asyncio.open_connection("127.0.0.1", self.server_port)
                self._connections[task].append(above[1])
                up = asyncio.ensure_future(self._pump(reader, above[1], Direction.UP))
                down = asyncio.ensure_future(self._pump(above[0], writer, Direction.DOWN))
                try:
                    await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in (up, down):
                        pump.cancel()
                    await asyncio.gather(up, down, return_exceptions=True)
        finally:
            for end in self._connections.pop(task):
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        with suppress(OSError):
            while data := await reader.read(2**16):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._open[direction].wait()
                writer.write(data)
                await writer.drain()
