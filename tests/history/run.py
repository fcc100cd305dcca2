"""A run: clients and a nemesis at work on a real controller, and a history that is checked afterwards."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from tests.history.checker import Violation, check
from tests.history.clients import RawServer, reader, real_server, watcher
from tests.history.nemesis import ControllerHost, Nemesis
from tests.history.operations import History, Operation
from tests.history.proxy import TcpProxy
from tests.history.recorder import RecordingStub
from tests.servers import Controller

JOB_OPERATIONS = 200  # answered ones, after which clients go on with another job: short histories are quick to judge
JOBS_AT_ONCE = 3
PROXIES = 4
SAVE_ITERATIONS = 40
# Each client has a connection of its own, and connects again soon.
CHANNEL = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]


class Run:
    """One controller, its clients, and what happened."""

    def __init__(self, seed: int, program: type[Controller]) -> None:
        self._program = program
        self.history, self._random = History(), Random(seed)
        self._proxies = [TcpProxy() for _ in range(PROXIES)]
        self._jobs = 0

    async def work(self, go_on: Callable[[History], bool]) -> None:
        """Let clients work for as long as `go_on` says."""
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            self._targets = [f"127.0.0.1:{await proxy.start()}" for proxy in self._proxies]
            host = ControllerHost(self._program, folder, SAVE_ITERATIONS, self._proxies)
            await host.start()
            stack.callback(lambda: host.process.kill())
            nemesis = asyncio.ensure_future(Nemesis(host, self._proxies, self.history, self._random).run())
            await asyncio.gather(*(self._jobs_in_turn(go_on) for _ in range(JOBS_AT_ONCE)))
            await stopped(nemesis)
            for proxy in self._proxies:
                await proxy.stop()

    async def _jobs_in_turn(self, go_on: Callable[[History], bool]) -> None:
        while go_on(self.history):
            self._jobs += 1
            await self._use(f"job-{self._jobs}", go_on)

    async def _use(self, job: str, go_on: Callable[[History], bool]) -> None:
        """Let several clients use one job."""
        async with AsyncExitStack() as stack:

            async def stub(client: str) -> tuple[RecordingStub, str]:
                target = self._random.choice(self._targets)
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(target, CHANNEL))
                return RecordingStub(channel, self.history, client), target

            seeds = [Random(self._random.random()) for _ in range(6)]
            clients: list[Coroutine[Any, Any, None]] = [
                RawServer((await stub(f"server-{i}"))[0], job, seeds[i]).run() for i in range(2)
            ]
            real, target = await stub("client")
            clients.append(real_server(target, job, seeds[2], real))
            clients.append(reader((await stub("reader"))[0], job, seeds[3]))
            clients.append(watcher((await stub("watcher"))[0], job))
            tasks = [asyncio.ensure_future(client) for client in clients]
            first = len(self.history.operations)
            while go_on(self.history) and self._answered(job, first) < JOB_OPERATIONS:
                ended, _ = await asyncio.wait(tasks, timeout=0.1, return_when=asyncio.FIRST_EXCEPTION)
                for task in ended:
                    task.result()
            await stopped(*tasks)

    def _answered(self, job: str, first: int) -> int:
        return sum(o.job == job and o.answer is not None for o in self.history.operations[first:])


async def stopped(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks, and wait for their end."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


def run(
    seed: int, operations: int | None = None, seconds: float | None = None, program: type[Controller] = Controller
) -> History:
    """Work until there are this many answers, or for this time."""
    begin: float | None = None

    def go_on(history: History) -> bool:
        nonlocal begin
        if seconds is not None:
            begin = begin or time.monotonic()  # once the controller serves
            return time.monotonic() - begin < seconds
        return sum(o.answer is not None for o in history.operations) < (operations or 0)

    whole = Run(seed, program)
    asyncio.run(whole.work(go_on))
    return whole.history


def check_run(history: History) -> list[Violation]:
    """All violations in the history of a run."""
    return check(history)


def table(history: History, violations: list[Violation]) -> str:
    """What was done, with which outcome, and what went wrong meanwhile."""
    counts = Counter((_name(operation), operation.outcome) for operation in history.operations if operation.job)
    outcomes = sorted({outcome for _, outcome in counts}, key=lambda outcome: (outcome != "ok", outcome))
    names = sorted({name for name, _ in counts})
    rows = [["", *outcomes], *([name, *(str(counts[name, o] or "") for o in outcomes)] for name in names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    events = ", ".join(f"{count} × {fault}" for fault, count in sorted(history.nemesis.items()))
    iterations = sum(len(watched.iterations) for watched in history.watched)
    return "\n".join([
        *lines,
        f"nemesis: {events}",
        f"{len(history.jobs())} jobs, {len(history.watched)} watchers who saw {iterations} iterations",
        f"{len(history.operations)} operations, {len(violations)} violations",
    ])  # fmt: skip


def _name(operation: Operation) -> str:
    return operation.rpc or operation.kind.value
