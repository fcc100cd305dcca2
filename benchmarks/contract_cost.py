"""What a decision costs on the wire before anything is computed: the floor under the controller's latency.

A server in a process of its own answers every summary of an iteration with the same decision. Beside it stands an echo
that moves as many bytes there and back without looking at them. The difference is what the contract's messages cost:
to build and read them in Python, on both sides.
"""

import asyncio
import multiprocessing
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Literal

import grpc

from benchmarks._harness import Bar, Report, Spread, interleave, ratio, run
from dbw.v1.controller_pb2 import (
    CoordinateRequest,
    CoordinateResponse,
    EndIterationRequest,
    EndIterationResponse,
)
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import DECISION_REASON_BEST_RATE, Arrivals, Decision, GradientMoments, IterationSummary

REPETITIONS, CALLS = 60, 30
BARS: dict[int, list[tuple[str, str, Literal["<=", ">="], float]]] = {
    16: [("stream", "echo", "<=", 1.4), ("unary", "stream", "<=", 2)],
    1000: [("stream", "echo", "<=", 2), ("stream, a message an arrival", "stream", ">=", 4)],
}
DECISION = Decision(iteration=1, k=7, reason=DECISION_REASON_BEST_RATE, live_workers=16)


def read(report: CoordinateRequest | EndIterationRequest) -> list[tuple[list[int], list[float]]]:
    """Take the arrivals out of a report, which is the least that anyone who uses them does."""
    return [(list(batch.workers), list(batch.seconds)) for batch in report.arrivals]


def reports(workers: int) -> tuple[Callable[[], dict[str, Any]], Callable[[], dict[str, Any]]]:
    """Two functions that build the fields of a full report, in which every worker's gradient arrived.

    The first puts all arrivals into one pair of columns, the second makes a message of each.
    """
    rng = random.Random(workers)
    order = rng.sample(range(workers), workers)
    seconds = sorted(0.3 + rng.expovariate(1 / 0.7) for _ in order)

    def fields(arrivals: list[Arrivals]) -> dict[str, Any]:
        moments = GradientMoments(mean_squared_norm=0.81, sum_squared_norms=1.2 * workers)
        summary = IterationSummary(
            iteration=7, k=workers, duration_seconds=seconds[-1], loss=0.42, learning_rate=0.08, moments=moments
        )
        return {"job": "resnet", "session": "0f9c1b", "arrivals": arrivals, "summary": summary}

    def columns() -> dict[str, Any]:
        return fields([Arrivals(iteration=7, seconds=seconds, workers=order)])

    def rows() -> dict[str, Any]:
        arrivals = enumerate(zip(seconds, order, strict=True))
        return fields([Arrivals(iteration=7, preceding=i, seconds=[s], workers=[w]) for i, (s, w) in arrivals])

    return columns, rows


async def echo(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:  # noqa: ARG001
    """Return what comes in, unread."""
    async for request in requests:
        yield request


async def coordinate(
    requests: AsyncIterator[CoordinateRequest],
    context: object,  # noqa: ARG001
) -> AsyncIterator[CoordinateResponse]:
    """Read every report as a controller has to, and always decide the same."""
    async for request in requests:
        read(request)
        yield CoordinateResponse(decision=DECISION)


async def end_iteration(request: EndIterationRequest, context: object) -> EndIterationResponse:  # noqa: ARG001
    """Do the same for one report."""
    read(request)
    return EndIterationResponse(decision=DECISION)


HANDLERS: dict[str, dict[str, Any]] = {
    "benchmarks.Echo": {"Echo": grpc.stream_stream_rpc_method_handler(echo)},
    "dbw.v1.ControllerService": {
        "Coordinate": grpc.stream_stream_rpc_method_handler(
            coordinate, CoordinateRequest.FromString, CoordinateResponse.SerializeToString
        ),
        "EndIteration": grpc.unary_unary_rpc_method_handler(
            end_iteration, EndIterationRequest.FromString, EndIterationResponse.SerializeToString
        ),
    },
}


async def serve(port_to: Connection) -> None:
    """Run the server until the process is ended."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(*item) for item in HANDLERS.items()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    port_to.send(port)
    await server.wait_for_termination()


def serve_in_process(port_to: Connection) -> None:
    """Run the server in the process that this is called in."""
    asyncio.run(serve(port_to))


@contextmanager
def server_channel() -> Iterator[grpc.Channel]:
    """Start a server in a process of its own, and connect to it."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=serve_in_process, args=(sender,), daemon=True)
    process.start()
    sender.close()  # the child's copy is the only one left, so that its death ends the wait
    try:
        with grpc.insecure_channel(f"127.0.0.1:{receiver.recv()}") as channel:
            yield channel
    finally:
        process.terminate()
        process.join()


def exchange(method: Callable[[Iterator[Any]], Iterator[Any]], message: Callable[[], Any]) -> Callable[[], Any]:
    """Open a stream; each call of the result sends one message on it and waits for the answer."""
    outbox: SimpleQueue[Any] = SimpleQueue()
    inbox = method(iter(outbox.get, None))

    def call() -> Any:  # noqa: ANN401 (bytes or a message)
        outbox.put(message())
        return next(inbox)

    return call


def measure_cluster(channel: grpc.Channel, workers: int) -> dict[str, list[float]]:
    """Seconds of each way to get a decision in a cluster of this size, and of the echo."""
    stub = ControllerServiceStub(channel)
    columns, rows = reports(workers)
    payload = CoordinateRequest(**columns()).SerializeToString()
    coordinate_columns = exchange(stub.Coordinate, lambda: CoordinateRequest(**columns()))
    coordinate_rows = exchange(stub.Coordinate, lambda: CoordinateRequest(**rows()))
    candidates: dict[str, Callable[[], object]] = {
        "echo": exchange(channel.stream_stream("/benchmarks.Echo/Echo"), lambda: payload),
        "stream": lambda: coordinate_columns().decision.k,
        "stream, a message an arrival": lambda: coordinate_rows().decision.k,
        "unary": lambda: stub.EndIteration(EndIterationRequest(**columns())).decision.k,
    }
    return interleave(candidates, REPETITIONS, CALLS)


def measure() -> Report:
    """Measure a small and a large cluster."""
    report = Report()
    with server_channel() as channel:
        for workers in (16, 1000):
            seconds = measure_cluster(channel, workers)
            for name, values in seconds.items():
                report.results[f"n = {workers}: {name}"] = Spread.of([value * 1e6 for value in values], "µs")
            for a, b, op, bar in BARS[workers]:
                name = f"n = {workers}: {a} / {b}"
                report.results[name] = ratio(seconds[a], seconds[b])
                report.bars.append(Bar(name, report.results[name].median, op, bar))
    return report


def main() -> None:
    """Run the benchmark."""
    run("contract_cost", measure, __doc__)


if __name__ == "__main__":
    main()
