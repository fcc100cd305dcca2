"""What a client that behaves well notices of others that do not, on the same controller.

The good client has eight jobs, half of them on streams and half with single calls, which report every 20 ms. Beside it,
in a process of their own, others do one thing as fast as they can: nothing, calls without a token over one connection
and over eight, and, with a token, questions that are expensive to answer.
"""

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from benchmarks._harness import Bar, Report, Spread, run
from benchmarks.decision_latency import COORDINATE, requests, server, stream
from benchmarks.mixed_load import percentile
from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Membership

JOBS, WORKERS, ITERATION_SECONDS = 8, 16, 0.02
REPETITIONS, SECONDS, CALLS_AT_ONCE = 3, 4.0, 128
BAR = 50.0
Metadata = tuple[tuple[str, str], ...]
GOOD, HOSTILE = ((("authorization", f"Bearer {who}-token"),) for who in ("good", "hostile"))


async def create(stub: Any, name: str, metadata: Metadata) -> str:  # noqa: ANN401 (of gRPC's asyncio API)
    """Create a job; returns its session."""
    request = pb.CreateJobRequest(job=name, membership=Membership(live_workers=WORKERS), iteration=0)
    session: str = (await stub.CreateJob(request, metadata=metadata)).session
    return session


async def train(channel: grpc.aio.Channel, name: str, on_stream: bool, seconds: list[float], until: float) -> None:
    """Report iterations, and note how long each decision takes."""
    stub: Any = ControllerServiceStub(channel)
    own = requests(name, await create(stub, name, GOOD), WORKERS, range(1, WORKERS + 1), 10**9)
    if on_stream:
        call = stream(channel, COORDINATE)(metadata=GOOD)
    while time.monotonic() < until:
        request = next(own)
        begin = time.monotonic()
        if on_stream:
            await call.write(request)
            await call.read()
        else:
            single = pb.EndIterationRequest.FromString(request.SerializeToString())
            await stub.EndIteration(single, metadata=GOOD)
        seconds.append(time.monotonic() - begin)
        await asyncio.sleep(ITERATION_SECONDS)


async def behave(target: str, until: float) -> dict[str, list[float]]:
    """What the good client does."""
    seconds: dict[str, list[float]] = {"streams": [], "single calls": []}
    async with grpc.aio.insecure_channel(target) as channel:
        kinds = ["streams", "single calls"] * (JOBS // 2)
        await asyncio.gather(
            *(train(channel, f"good-{i}", kind == "streams", seconds[kind], until) for i, kind in enumerate(kinds))
        )
    return seconds


async def flood(call: Callable[[], Awaitable[object]], until: float) -> int:
    """Make calls, some at a time, as fast as they are answered; returns how many."""
    count = 0

    async def repeat() -> None:
        nonlocal count
        while time.monotonic() < until:
            with suppress(grpc.aio.AioRpcError):
                await call()
            count += 1

    await asyncio.gather(*(repeat() for _ in range(CALLS_AT_ONCE)))
    return count


async def do_nothing(target: str, until: float) -> int:  # noqa: ARG001 (as the others)
    """Leave the good client alone."""
    await asyncio.sleep(until - time.monotonic())
    return 0


async def call_without_a_token(target: str, until: float, connections: int = 1) -> int:
    """Make calls that are refused."""
    counts = []
    for number in range(connections):
        options = [("grpc.use_local_subchannel_pool", 1), ("number", number)]
        channel = grpc.aio.insecure_channel(target, options=options)
        stub: Any = ControllerServiceStub(channel)
        counts.append(flood(lambda stub=stub: stub.EndIteration(pb.EndIterationRequest()), until))  # type: ignore[misc]
    return sum(await asyncio.gather(*counts))


async def call_over_eight_connections(target: str, until: float) -> int:
    """Make calls that are refused."""
    return await call_without_a_token(target, until, 8)


async def ask_what_is_expensive(target: str, until: float) -> int:
    """Have a long history diagnosed, and a state exported, with a token."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub: Any = ControllerServiceStub(channel)
        own = requests("hostile", await create(stub, "hostile", HOSTILE), WORKERS, range(1, WORKERS + 1), 200)

        async def outgoing() -> AsyncIterator[pb.CoordinateRequest]:
            for request in own:
                yield request

        async for _ in stream(channel, COORDINATE)(outgoing(), metadata=HOSTILE):
            pass

        async def call() -> None:
            await stub.DiagnoseJob(pb.DiagnoseJobRequest(job="hostile"), metadata=HOSTILE)
            async for _ in stub.ExportJobState(pb.ExportJobStateRequest(job="hostile"), metadata=HOSTILE):
                pass

        return await flood(call, until)


def run_client(client: Callable[[str, float], Any], target: str, until: float, results: Any) -> None:  # noqa: ANN401
    """Run a client in the process that this is called in."""
    results.put((client.__name__, asyncio.run(client(target, until))))


ATTACKS = {
    "nobody": do_nothing,
    "no token, one connection": call_without_a_token,
    "no token, eight connections": call_over_eight_connections,
    "expensive questions": ask_what_is_expensive,
}


def load(target: str, attack: Callable[[str, float], Any]) -> tuple[dict[str, list[float]], int]:
    """Run both beside each other; returns how long the good one's calls took, and how many the other made."""
    spawn = multiprocessing.get_context("spawn")
    results: Any = spawn.Queue()
    until = time.monotonic() + SECONDS + 2.0  # for the processes to start; both go on until the same time
    clients = [spawn.Process(target=run_client, args=(one, target, until, results)) for one in (behave, attack)]
    for client in clients:
        client.start()
    found = dict(results.get() for _ in clients)
    for client in clients:
        client.join()
    return found[behave.__name__], found[attack.__name__]


def measure() -> Report:
    """Attack a controller some times in each way."""
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens"
        tokens.write_text("good good-token\nhostile hostile-token\n")
        with server(token_file=tokens) as running:
            rounds = [
                {name: load(running.target, attack) for name, attack in ATTACKS.items()} for _ in range(REPETITIONS)
            ]
    for name in ATTACKS:
        report.results[f"{name}: calls"] = Spread.of([one[name][1] / SECONDS for one in rounds], "/s")
        for kind in ("streams", "single calls"):
            title = f"{name}: p99 of {kind}"
            values = [percentile(one[name][0][kind], 99) * 1e3 for one in rounds]
            report.results[title] = Spread.of(values, "ms")
            report.bars.append(Bar(title, report.results[title].median, "<=", BAR))
    return report


def main() -> None:
    """Run the benchmark."""
    run("hostile_clients", measure, __doc__)


if __name__ == "__main__":
    main()
