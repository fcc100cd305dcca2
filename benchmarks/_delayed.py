"""A longer way to a server: a TCP proxy in a thread, for benchmarks and tests."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CHUNK_BYTES, TICK_SECONDS = 2**16, 0.1


class Way:
    """An `address` to connect to; what is sent there takes `seconds` in each direction, or for ever (infinity)."""

    def __init__(self, target: str, seconds: float) -> None:
        self._host, _, self._port = target.rpartition(":")
        self.seconds, self.address = seconds, ""

    async def carry(self, is_open: threading.Event, is_over: asyncio.Event) -> None:
        """Accept connections, and hand on what is sent over them."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        is_open.set()
        await is_over.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        others_reader, others_writer = await asyncio.open_connection(self._host, int(self._port))
        try:
            await asyncio.gather(self._hand_on(reader, others_writer), self._hand_on(others_reader, writer))
        finally:
            for end in (writer, others_writer):
                end.transport.abort()

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        now = asyncio.get_running_loop().time
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            data = b"something"
            while data:
                sent, data = await under_way.get()
                while (left := sent + self.seconds - now()) > 0:
                    await asyncio.sleep(min(left, TICK_SECONDS))  # the delay may change meanwhile
                writer.write(data)
            writer.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            data = b"something"
            while data:
                with suppress(ConnectionError):
                    data = b""
                    data = await reader.read(CHUNK_BYTES)
                under_way.put_nowait((now(), data))


@contextmanager
def delayed(target: str, seconds: float) -> Iterator[Way]:
    """A way to a server."""
    way, is_open = Way(target, seconds), threading.Event()
    loop = asyncio.new_event_loop()
    is_over = asyncio.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(way.carry(is_open, is_over))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    is_open.wait()
    try:
        yield way
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join()
