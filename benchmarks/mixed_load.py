"""How long single calls wait beside busy streams on the same controller.

Three processes: a controller, 64 jobs on streams, and 32 jobs that make single calls. Every job asks again as soon as
it has an answer, so that the controller is as busy as it can be. Jobs are created and the health is checked as well.
"""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from statistics import quantiles
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from benchmarks._harness import Bar, Report, Spread, run
from benchmarks.decision_latency import COORDINATE, requests, server, stream
from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Membership

STREAMS, SINGLE_CALLS, WORKERS = 64, 32, 16
REPETITIONS, SECONDS = 3, 4.0
BAR = 3.0
Clock = Callable[[], float]


async def create(stub: Any, name: str) -> str:  # noqa: ANN401 (of gRPC's asyncio API)
    """Create a job; returns its session."""
    request = pb.CreateJobRequest(job=name, membership=Membership(live_workers=WORKERS), iteration=0)
    session: str = (await stub.CreateJob(request)).session
    return session


def prepared(name: str, session: str) -> Iterator[pb.CoordinateRequest]:
    """What a parameter server sends, without an end."""
    return requests(name, session, WORKERS, range(1, WORKERS + 1), 10**9)


async def on_stream(channel: grpc.aio.Channel, name: str, seconds: list[float], until: float) -> None:
    """Ask on a stream, and note how long each answer takes."""
    own = prepared(name, await create(ControllerServiceStub(channel), name))
    answered = asyncio.Event()
    begin = 0.0

    async def outgoing() -> AsyncIterator[pb.CoordinateRequest]:
        nonlocal begin
        while time.monotonic() < until:
            request = next(own)
            begin = time.monotonic()
            yield request
            await answered.wait()
            answered.clear()

    async for _ in stream(channel, COORDINATE)(outgoing()):
        seconds.append(time.monotonic() - begin)
        answered.set()


async def timed(call: Callable[[], Awaitable[object]], seconds: list[float], until: float) -> None:
    """Make single calls, one after the other, and note how long each takes."""
    while (begin := time.monotonic()) < until:
        await call()
        seconds.append(time.monotonic() - begin)


async def with_single_calls(channel: grpc.aio.Channel, name: str, seconds: list[float], until: float) -> None:
    """Ask in single calls."""
    stub: Any = ControllerServiceStub(channel)
    own = prepared(name, await create(stub, name))

    def call() -> Awaitable[object]:
        request = next(own)
        return stub.EndIteration(  # type: ignore[no-any-return]
            pb.EndIterationRequest(
                job=name, session=request.session, arrivals=request.arrivals, summary=request.summary
            )
        )

    await timed(call, seconds, until)


async def others(channel: grpc.aio.Channel, created: list[float], checked: list[float], until: float) -> None:
    """Create jobs and check the health, all the time."""
    stub: Any = ControllerServiceStub(channel)
    health: Any = HealthStub(channel)
    await asyncio.gather(
        timed(lambda: create(stub, "created"), created, until),
        timed(lambda: health.Check(HealthCheckRequest()), checked, until),
    )


async def _streams(target: str, until: float) -> dict[str, list[float]]:
    seconds: list[float] = []
    async with grpc.aio.insecure_channel(target) as channel:
        await asyncio.gather(*(on_stream(channel, f"stream-{i}", seconds, until) for i in range(STREAMS)))
    return {"stream": seconds}


async def _single_calls(target: str, until: float) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {"single call": [], "CreateJob": [], "health": []}
    async with grpc.aio.insecure_channel(target) as channel:
        await asyncio.gather(
            *(with_single_calls(channel, f"single-{i}", seconds["single call"], until) for i in range(SINGLE_CALLS)),
            others(channel, seconds["CreateJob"], seconds["health"], until),
        )
    return seconds


def run_client(client: Callable[[str, float], Any], target: str, until: float, results: Any) -> None:  # noqa: ANN401
    """Run a client in the process that this is called in."""
    results.put(asyncio.run(client(target, until)))


def load(target: str) -> dict[str, list[float]]:
    """Run both clients beside each other; returns how long each call took."""
    spawn = multiprocessing.get_context("spawn")
    results: Any = spawn.Queue()
    until = time.monotonic() + SECONDS + 2.0  # for the processes to start; both measure until the same time
    clients = [
        spawn.Process(target=run_client, args=(client, target, until, results)) for client in (_streams, _single_calls)
    ]
    for client in clients:
        client.start()
    seconds: dict[str, list[float]] = {}
    for _ in clients:
        seconds |= results.get()
    for client in clients:
        client.join()
    return seconds


def percentile(seconds: list[float], percent: int) -> float:
    """The time that this share of the calls did not exceed."""
    return quantiles(seconds, n=100, method="inclusive")[percent - 1]


def measure() -> Report:
    """Load a controller some times, and compare."""
    report = Report()
    with server() as running:
        rounds = [load(running.target) for _ in range(REPETITIONS)]
    for kind in rounds[0]:
        for percent in (50, 99):
            values = [percentile(one[kind], percent) * 1e3 for one in rounds]
            report.results[f"{kind}: p{percent}"] = Spread.of(values, "ms")
        report.results[f"{kind}: calls"] = Spread.of([len(one[kind]) / SECONDS for one in rounds], "/s")
    for kind in ("single call", "CreateJob", "health"):
        ratios = [percentile(one[kind], 99) / percentile(one["stream"], 99) for one in rounds]
        title = f"p99 of {kind} / p99 of stream"
        report.results[title] = Spread.of(ratios, "×")
        report.bars.append(Bar(title, report.results[title].median, "<=", BAR))
    return report


def main() -> None:
    """Run the benchmark."""
    run("mixed_load", measure, __doc__)


if __name__ == "__main__":
    main()
