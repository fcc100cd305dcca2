"""What it costs to bring gradients to the parameter server, beside PyTorch's own transport, gloo.

A parameter server runs as a user starts it; workers push through `dbw_ps.client`, each in a process of its own. Gloo
moves the same number of bytes between as many processes, in turn with ours, over the loopback interface. The server
checks every gradient and takes its norm, which gloo does not.

Push: one worker. Only the rpc is timed, from the call of `push` until its response. Gloo's is `send` until an
acknowledgement of one number has come back, `recv` being posted before.

Fan-in: all workers have the parameters and begin together, at a barrier. The time is from when the first of them begins
until the last has its response; the server may then still be adding the last gradient. Gloo's is from when the first
rank begins until all are done: rank 0 receives the gradients one after the other and adds them, or all ranks `reduce`
to rank 0, which has zeros.

Bare gRPC is the floor under ours: workers send the same pieces to a server in Python that reads and forgets them.

PyTorch has one thread in workers and in all of gloo's processes, which is faster for gloo than more of them on a
machine with few cores, and its default in the server. Bars are throughputs, ours over gloo's. For a single push the bar
is 0.40; 0.55 would be good.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection as Pipe
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

import grpc
import torch
import torch.distributed as dist
import uvloop
from torch import nn

from benchmarks._harness import Bar, Report, Spread, ratio, run
from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import pieces
from dbw_ps.client import ParameterServer
from dbw_ps.tensors import bytes_of
from dbw_runtime.channel import Connection
from dbw_runtime.memory import keep_large_buffers

RESNET_ELEMENTS, LENET_ELEMENTS = 11_181_642, 431_080  # of ResNet-18 and LeNet: 45 and 1.7 MB
WORKERS = 8
REPETITIONS = 9
Timed = tuple[float, float]  # when somebody began and was done, on the clock that all processes share


class Case(NamedTuple):
    """A gradient to push, so many times a repetition."""

    name: str
    elements: int
    calls: int


CASES = [Case("45 MB", RESNET_ELEMENTS, 3), Case("1.7 MB", LENET_ELEMENTS, 15)]


def model_of(elements: int) -> nn.Module:
    """A model with so many parameters."""
    model = nn.Linear(1, 1, bias=False)
    model.weight = nn.Parameter(torch.zeros(1, elements))
    return model


def resnet_sized() -> nn.Module:
    """As many parameters as ResNet-18."""
    return model_of(RESNET_ELEMENTS)


def lenet_sized() -> nn.Module:
    """As many parameters as LeNet."""
    return model_of(LENET_ELEMENTS)


def tiny() -> nn.Module:
    """Next to nothing."""
    return model_of(1)


MODELS: Mapping[int, Callable[[], nn.Module]] = {RESNET_ELEMENTS: resnet_sized, LENET_ELEMENTS: lenet_sized}


class Server(NamedTuple):
    """A running parameter server."""

    target: str
    metrics: str
    pid: int


@contextmanager
def parameter_server(model: Callable[[], nn.Module], workers: int, *flags: str) -> Iterator[Server]:
    """Start a parameter server that waits for all of its workers in every iteration."""
    fixed = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--log-format", "json", "--policy", "sync"]
    place = f"benchmarks.gradient_transport:{model.__name__}"
    command = [sys.executable, "-m", "dbw_ps", *fixed, "--model", place, "--min-workers", str(workers), *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        ports: dict[str, Any] = {}
        for line in process.stderr:
            entry = json.loads(line)
            ports = entry if entry["message"] == "listening" else ports
            if entry["message"] == "ready":
                break
        else:
            raise RuntimeError("the parameter server did not start")
        threading.Thread(target=process.stderr.read, daemon=True).start()  # so that it can go on logging
        try:
            target, metrics = (f"127.0.0.1:{ports[name]}" for name in ("grpc_port", "metrics_port"))
            yield Server(target, metrics, process.pid)
        finally:
            process.terminate()
            process.wait()


class Team:
    """Processes that wait to be told what to do. They get a pipe, a barrier for all of them, and their number."""

    def __init__(self, role: Callable[..., None], size: int, *arguments: object) -> None:
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload([__name__])  # PyTorch takes seconds to import
        self._together = processes.Barrier(size)
        self._pipes: list[Pipe] = []
        for number in range(size):
            ours, theirs = processes.Pipe()
            processes.Process(target=role, args=(theirs, self._together, number, *arguments), daemon=True).start()
            theirs.close()  # so that a process that dies is noticed
            self._pipes.append(ours)

    def do(self, command: str, *arguments: object, first: int | None = None) -> float:
        """Let all of them, or only the first few, do something; returns how long that took them together."""
        for pipe in self._pipes[:first]:
            pipe.send((command, *arguments))
        timed: list[Timed] = [answer for pipe in self._pipes[:first] if (answer := pipe.recv()) is not None]
        return max(end for _, end in timed) - min(begin for begin, _ in timed)

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # otherwise one may have died, and the others end with us
            for pipe in self._pipes:
                pipe.send(("leave",))
            for pipe in self._pipes:
                pipe.recv()


def work(commands: Pipe, together: Barrier, number: int, target: str, elements: int) -> None:
    """Be a worker: push a gradient whenever told to."""
    keep_large_buffers()
    torch.set_num_threads(1)
    gradient = torch.randn(elements)
    with ParameterServer(Connection(target), f"worker-{number}") as link:
        parameters = link.newer(None)
        while commands.recv()[0] == "push":
            assert parameters is not None
            together.wait()
            begin = time.perf_counter()
            outcome = link.push(parameters, gradient, loss=1.0)
            end = time.perf_counter()
            assert outcome == pb.GRADIENT_OUTCOME_USED, f"outcome {outcome}"
            parameters = link.newer(parameters)  # what comes after the push shall not disturb the next candidate
            commands.send((begin, end))
    commands.send(None)


async def forget(requests: AsyncIterator[bytes], context: object) -> bytes:  # noqa: ARG001
    """Read a gradient, and do nothing with it."""
    async for _ in requests:
        pass
    return b""


async def serve_bare(port: "SimpleQueue[int]") -> None:
    """Serve the least that takes gradients in."""
    server = grpc.aio.server()
    handlers: dict[str, Any] = {"Push": grpc.stream_unary_rpc_method_handler(forget)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("benchmarks.Bare", handlers)])
    port.put(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()


def run_bare(port: "SimpleQueue[int]") -> None:
    """Be that server, with all that makes ours fast."""
    keep_large_buffers()
    uvloop.run(serve_bare(port))


@contextmanager
def bare_server() -> Iterator[str]:
    """Start it in a process of its own; its address."""
    processes = multiprocessing.get_context("forkserver")
    port: SimpleQueue[int] = processes.SimpleQueue()
    process = processes.Process(target=run_bare, args=(port,), daemon=True)
    process.start()
    try:
        yield f"127.0.0.1:{port.get()}"
    finally:
        process.terminate()
        process.join()


def work_bare(commands: Pipe, together: Barrier, number: int, target: str, elements: int) -> None:  # noqa: ARG001
    """Be a worker of the bare server."""
    keep_large_buffers()
    vector = bytes_of(torch.randn(elements))
    header = pb.GradientHeader(version=1, total_bytes=vector.nbytes, loss=1.0)
    with Connection(target).open() as channel:
        push: Any = channel.stream_unary("/benchmarks.Bare/Push")
        while commands.recv()[0] == "push":
            together.wait()
            begin = time.perf_counter()
            push(pieces.cut(header, vector))
            commands.send((begin, time.perf_counter()))
    commands.send(None)


def rank(commands: Pipe, together: Barrier, number: int, folder: str) -> None:
    """Be one of gloo's processes."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=number, world_size=WORKERS + 1)
    gradients = {elements: torch.randn(elements) for elements in MODELS}
    received, total = torch.empty(RESNET_ELEMENTS), torch.zeros(RESNET_ELEMENTS)
    actions: dict[str, Callable[..., Timed | None]] = {
        "send": lambda elements: send_once(number, gradients[elements], received[:elements]),
        "add": lambda: receive_and_add(number, together, gradients[RESNET_ELEMENTS], received, total),
        "reduce": lambda: reduce(number, together, gradients[RESNET_ELEMENTS], total),
    }
    while (command := commands.recv())[0] != "leave":
        commands.send(actions[command[0]](*command[1:]))
    dist.destroy_process_group()
    commands.send(None)


def send_once(number: int, gradient: torch.Tensor, received: torch.Tensor) -> Timed | None:
    """Rank 1 sends to rank 0, which answers."""
    token = torch.zeros(1)
    if number == 0:
        receiving = dist.irecv(received, 1)
        assert receiving is not None
        dist.send(token, 1)
        receiving.wait()
        dist.send(token, 1)
        return None
    dist.recv(token, 0)
    begin = time.perf_counter()
    dist.send(gradient, 0)
    dist.recv(token, 0)
    return begin, time.perf_counter()


def receive_and_add(
    number: int, together: Barrier, gradient: torch.Tensor, received: torch.Tensor, total: torch.Tensor
) -> Timed:
    """All send to rank 0, which adds up what it receives from one after the other."""
    together.wait()
    begin = time.perf_counter()
    if number:
        dist.send(gradient, 0)
    else:
        dist.recv(total, 1)
        for sender in range(2, WORKERS + 1):
            dist.recv(received, sender)
            total.add_(received)
    return begin, time.perf_counter()


def reduce(number: int, together: Barrier, gradient: torch.Tensor, total: torch.Tensor) -> Timed:
    """The sum of all gradients goes to rank 0; other ranks' own may be overwritten."""
    own = total.zero_() if number == 0 else gradient
    together.wait()
    begin = time.perf_counter()
    dist.reduce(own, 0)
    return begin, time.perf_counter()


def in_turn(candidates: Mapping[str, Callable[[], float]], calls: int) -> dict[str, list[float]]:
    """Let candidates run in turn, a first time for nothing; returns their seconds, one after the other."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for repetition in range(REPETITIONS + 1):
        for name, candidate in candidates.items():
            durations = [candidate() for _ in range(calls)]
            if repetition:
                seconds[name].append(sorted(durations)[calls // 2])
    return seconds


@contextmanager
def training(elements: int, workers: int) -> Iterator[dict[str, Callable[[], float]]]:
    """Workers of a parameter server, and of a bare server, that are there for them alone."""
    with (
        parameter_server(MODELS[elements], workers) as server,
        Team(work, workers, server.target, elements) as team,
        bare_server() as bare,
        Team(work_bare, workers, bare, elements) as bare_team,
    ):
        yield {"ours": partial(team.do, "push"), "bare gRPC": partial(bare_team.do, "push")}


def compare(report: Report, name: str, seconds: Mapping[str, Sequence[float]], bars: Mapping[str, float]) -> None:
    """Report how long all took, and our throughput, and that of bare gRPC, over that of the others."""
    for candidate, values in seconds.items():
        report.results[f"{name}: {candidate}"] = Spread.of([value * 1e3 for value in values], "ms")
    report.results[f"{name}: throughput over bare gRPC"] = ratio(seconds["bare gRPC"], seconds["ours"])
    for other, bar in bars.items():
        title = f"{name}: throughput over {other}"
        report.results[f"{title}, of bare gRPC"] = ratio(seconds[other], seconds["bare gRPC"])
        report.results[title] = ratio(seconds[other], seconds["ours"])
        report.bars.append(Bar(title, report.results[title].median, ">=", bar))


def measure() -> Report:
    """Measure pushes of one worker, and of all at once."""
    report = Report()
    with tempfile.TemporaryDirectory() as folder, Team(rank, WORKERS + 1, folder) as gloo:
        for case in CASES:
            with training(case.elements, 1) as ours:
                candidates = ours | {"gloo": partial(gloo.do, "send", case.elements, first=2)}
                compare(report, f"push of {case.name}", in_turn(candidates, case.calls), {"gloo": 0.40})
        with training(RESNET_ELEMENTS, WORKERS) as ours:
            candidates = ours | {
                "gloo recv and add": partial(gloo.do, "add"),
                "gloo reduce": partial(gloo.do, "reduce"),
            }
            bars = {"gloo recv and add": 1.0, "gloo reduce": 0.55}
            compare(report, f"fan-in of {WORKERS} × 45 MB", in_turn(candidates, 1), bars)
    return report


def main() -> None:
    """Run the benchmark."""
    run("gradient_transport", measure, __doc__)


if __name__ == "__main__":
    main()
