"""What a parameter server does in an iteration beside waiting for gradients, and how much memory it takes.

Overhead: a server with 11.2 M parameters (ResNet-18) tells in its metrics how long it averages ("aggregate", from the
arrival of the last gradient), updates and serialises the parameters ("publish"). Two workers push a gradient each; the
metrics are read after every iteration. In turn with these, as a floor, this process does the bare arithmetic with as
many threads: divide the sum, its squared norm in single precision, the optimiser's step, one copy of the parameters.
The last gradient is added after it has arrived, which the floor leaves out.

Memory: the peak of a server with 16 workers that push at once, less what a server with a tiny model and no worker has,
in multiples of the parameters' bytes.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from urllib.request import urlopen

import torch

from benchmarks._harness import Bar, Report, Spread, ratio, run
from benchmarks.gradient_transport import RESNET_ELEMENTS, Server, parameter_server, resnet_sized, tiny
from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps.client import ParameterServer
from dbw_runtime.channel import Connection

OPTIMISERS = {"SGD": "sgd:lr=0.001", "SGD with momentum": "sgd:lr=0.001,momentum=0.9"}
PHASES = ("aggregate", "update", "publish")
ITERATIONS, WARM_UP = 20, 3
MEMORY_WORKERS, MEMORY_ITERATIONS = 16, 6
MULTIPLES = 6.0  # of the parameters' bytes that plain SGD may take


@contextmanager
def workers(server: Server, count: int) -> Iterator[Callable[[], object]]:
    """Workers, each a thread with a link of its own; yields what lets each push a gradient and get new parameters."""
    gradient = torch.full((RESNET_ELEMENTS,), 1e-3)
    together = threading.Barrier(count)

    def iterate(number: int) -> None:
        together.wait()
        parameters = known[number]
        assert parameters is not None
        assert links[number].push(parameters, gradient, loss=1.0) == pb.GRADIENT_OUTCOME_USED
        known[number] = links[number].newer(parameters)

    with ExitStack() as stack:
        connection = Connection(server.target)
        links = [stack.enter_context(ParameterServer(connection, f"worker-{i}")) for i in range(count)]
        pool = stack.enter_context(ThreadPoolExecutor(count))
        known = list(pool.map(lambda link: link.newer(None), links))
        yield lambda: list(pool.map(iterate, range(count)))


def phase_seconds(server: Server) -> dict[str, float]:
    """How long all iterations together have spent in each phase."""
    with urlopen(f"http://{server.metrics}/metrics") as response:
        text = response.read().decode()
    found = re.findall(r'^dbw_ps_iteration_phase_seconds_sum\{phase="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {phase: float(seconds) for phase, seconds in found}


class Floor:
    """The arithmetic of an iteration, and nothing else."""

    def __init__(self, momentum: float, count: int) -> None:
        self._model, self._count = resnet_sized(), count
        self._parameter = next(self._model.parameters())
        self._parameter.grad = torch.full_like(self._parameter, 1e-3)
        self._optimiser = torch.optim.SGD([self._parameter], 0.001, momentum)
        self._copy = torch.empty(RESNET_ELEMENTS)

    def seconds(self) -> float:
        """Do it once."""
        gradient = self._parameter.grad
        assert gradient is not None
        flat = gradient.view(-1)
        begin = perf_counter()
        flat.div_(self._count)
        float(torch.dot(flat, flat))
        self._optimiser.step()
        self._copy.copy_(self._parameter.detach().view(-1))
        return perf_counter() - begin


def measure_overhead(report: Report, name: str, optimiser: str, count: int = 2) -> None:
    """Compare what the server does with the bare arithmetic."""
    floor = Floor(0.9 if "momentum" in optimiser else 0.0, count)
    spent: dict[str, list[float]] = {phase: [] for phase in PHASES}
    bare: list[float] = []
    with (
        parameter_server(resnet_sized, count, "--optimizer", optimiser) as server,
        workers(server, count) as iterate,
    ):
        for _ in range(WARM_UP):
            iterate()
            floor.seconds()
        before = phase_seconds(server)
        for _ in range(ITERATIONS):
            iterate()
            after = phase_seconds(server)
            for phase in PHASES:
                spent[phase].append(after[phase] - before[phase])
            before = after
            bare.append(floor.seconds())
    total = [sum(seconds) for seconds in zip(*spent.values(), strict=True)]
    rows: dict[str, Sequence[float]] = {**spent, "all three": total, "bare arithmetic": bare}
    for row, values in rows.items():
        report.results[f"{name}: {row}"] = Spread.of([value * 1e3 for value in values], "ms")
    report.results[f"{name}: all three / bare arithmetic"] = ratio(total, bare)


def memory(server: Server, field: str) -> int:
    """A field of the server's status, in bytes: VmHWM is the peak of its resident memory, VmRSS what that is now."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{server.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def measure_memory(report: Report) -> None:
    """See how much memory a server takes that many workers push to at once."""
    if not Path("/proc/self/status").exists():
        print("SKIPPED: the memory of a parameter server, which only Linux tells", file=sys.stderr)
        return
    with parameter_server(tiny, 1) as server:
        constant = memory(server, "VmRSS")
    report.results["memory of a server with a tiny model"] = Spread.of([constant / 2**20], "MB")
    for name, optimiser in OPTIMISERS.items():
        with (
            parameter_server(resnet_sized, MEMORY_WORKERS, "--optimizer", optimiser) as server,
            workers(server, MEMORY_WORKERS) as iterate,
        ):
            for _ in range(MEMORY_ITERATIONS):
                iterate()
            peak = memory(server, "VmHWM")
        multiples = (peak - constant) / (RESNET_ELEMENTS * torch.float32.itemsize)
        title = f"{name}, {MEMORY_WORKERS} workers: peak memory / parameters"
        report.results[f"{name}, {MEMORY_WORKERS} workers: peak memory"] = Spread.of([peak / 2**20], "MB")
        report.results[title] = Spread.of([multiples], "×")
        if name == "SGD":
            report.bars.append(Bar(title, multiples, "<=", MULTIPLES))


def measure() -> Report:
    """Measure overhead and memory."""
    report = Report()
    for name, optimiser in OPTIMISERS.items():
        measure_overhead(report, name, optimiser)
    measure_memory(report)
    return report


def main() -> None:
    """Run the benchmark."""
    run("iteration_overhead", measure, __doc__)


if __name__ == "__main__":
    main()
