"""What a decision costs over the network, beside an echo of the same message on the same server.

A controller runs in a process of its own, with snapshots, metrics (scraped every second) and logs on. Messages are
built beforehand; gRPC serialises and parses them, the echo's as well, so that the difference is the decision itself. In
every request all workers' gradients have arrived. The job has learnt from twenty iterations at each of its k ("rows"),
and goes on to wait for any of them.
DBW+ replays round trips once an answer is on its way; the next request, which is there at once here, waits for that.
"""

import asyncio
import multiprocessing
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import grpc
import numpy as np
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from benchmarks._harness import Bar, Report, Spread, interleave, ratio, run
from benchmarks.contract_cost import echo, exchange
from benchmarks.time_estimator import MATURE, arrival_times
from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Arrivals, GradientMoments, IterationSummary, Membership
from dbw_controller.client.settings import split_state
from dbw_controller.core import reports as events
from dbw_controller.core.job import Job
from dbw_controller.core.job_state import STATE_VERSION
from dbw_controller.core.policies import Dbw, create_policy
from dbw_controller.core.spec import JobSpec
from dbw_controller.server.app import ControllerOptions, serve
from dbw_controller.wire.messages import spec_message

REPETITIONS, CALLS = 40, 25
SERVING = HealthCheckResponse.SERVING
COORDINATE, ECHO = "/dbw.v1.ControllerService/Coordinate", "/benchmarks.Echo/Echo"
TYPES: dict[str, Any] = {COORDINATE: pb.CoordinateResponse, ECHO: pb.CoordinateRequest}


class Case(NamedTuple):
    """A job to measure."""

    name: str
    workers: int
    rows: Sequence[int]
    bar: float
    policy: str = "dbw"


CASES = [
    Case("n = 16, all rows", 16, range(1, 17), 1.25),
    Case("n = 1000, 10 rows", 1000, range(100, 1001, 100), 1.35),
    Case("n = 256, all rows", 256, range(1, 257), 2.0),
    Case("n = 1000, all rows", 1000, range(1, 1001), 4.0),
    Case("n = 16, dbw-plus", 16, range(1, 17), 1.25, "dbw-plus"),
    Case("n = 256, dbw-plus", 256, range(1, 257), 4.0, "dbw-plus"),
]


class Server(NamedTuple):
    """A running controller."""

    target: str
    pid: int


def serve_with_echo(port: int, metrics_port: int, folder: str, further: dict[str, Any]) -> None:
    """Run a controller that echoes as well, in the process that this is called in."""
    sys.stderr = (Path(folder) / "log").open("w")
    addresses: dict[str, Any] = {"listen": f"127.0.0.1:{port}", "metrics_listen": f"127.0.0.1:{metrics_port}"}
    options = ControllerOptions(**addresses, state_dir=Path(folder) / "state", **further)
    message = pb.CoordinateRequest
    method = grpc.stream_stream_rpc_method_handler(echo, message.FromString, message.SerializeToString)
    handlers: dict[str, Any] = {"Echo": method}
    serve(options, [grpc.method_handlers_generic_handler("benchmarks.Echo", handlers)])


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(**further: Any) -> Iterator[Server]:  # noqa: ANN401 (of any option)
    """Start a controller, perhaps with further options, and scrape its metrics all the time."""
    port, metrics_port, done = free_port(), free_port(), threading.Event()

    def scrape() -> None:
        while not done.wait(1.0):
            urlopen(f"http://127.0.0.1:{metrics_port}/metrics").read()

    with tempfile.TemporaryDirectory() as folder:
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(target=serve_with_echo, args=(port, metrics_port, folder, further), daemon=True)
        process.start()
        assert process.pid is not None
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            health: Any = HealthStub(channel)  # its type lacks the rpcs
            while health.Check(HealthCheckRequest(), wait_for_ready=True, timeout=60).status != SERVING:
                time.sleep(0.1)
        scraper = threading.Thread(target=scrape)
        scraper.start()
        try:
            yield Server(f"127.0.0.1:{port}", process.pid)
        finally:
            done.set()
            scraper.join()
            process.terminate()
            process.join()


def learnt_state(workers: int, rows: Sequence[int]) -> bytes:
    """What a job has learnt that waited for each of these k often, as it is exported."""
    rng = np.random.default_rng(workers)
    job = Job(JobSpec(Dbw()), events.Membership(workers))
    for _ in range(MATURE):
        for h in rows:
            job.durations.add(h, 1, arrival_times(rng, workers, h), 0.0)
    data = job.learnt()
    header = pb.JobStateHeader(format_version=STATE_VERSION, total_bytes=len(data), sha256=sha256(data).digest())
    return pb.ExportJobStateResponse(header=header, data=data).SerializeToString()


def create(stub: ControllerServiceStub, name: str, workers: int, rows: Sequence[int], policy: str = "dbw") -> str:
    """Create a job that has learnt; returns its session."""
    spec = spec_message(JobSpec(create_policy(policy)))
    request = pb.CreateJobRequest(job=name, spec=spec, membership=Membership(live_workers=workers), iteration=0)
    session = stub.CreateJob(request).session
    stub.ImportJobState(split_state(learnt_state(workers, rows), name, session))
    return session


def requests(name: str, session: str, workers: int, rows: Sequence[int], count: int) -> Iterator[pb.CoordinateRequest]:
    """What a parameter server sends at the end of its iterations."""
    rng = np.random.default_rng(workers)
    previous_k = workers
    for iteration in range(count):
        times, k = arrival_times(rng, workers, previous_k), int(rng.choice(rows))
        moments = GradientMoments(mean_squared_norm=1.0, sum_squared_norms=k * (1.0 + 5.0 * rng.random()))
        summary = IterationSummary(
            iteration=iteration,
            k=k,
            duration_seconds=times[k - 1],
            loss=2.0 + rng.random(),
            learning_rate=0.1,
            moments=moments,
        )
        arrivals = [Arrivals(iteration=iteration, seconds=times, workers=rng.permutation(workers))]
        yield pb.CoordinateRequest(job=name, session=session, arrivals=arrivals, summary=summary)
        previous_k = k


def stream(channel: Any, method: str) -> Any:  # noqa: ANN401 (of gRPC or of its asyncio API)
    """A method that takes reports, and what it returns."""
    return channel.stream_stream(method, pb.CoordinateRequest.SerializeToString, TYPES[method].FromString)


def measure_latency(report: Report, target: str, case: Case) -> None:
    """Time decisions of one job, and the echo, in turn."""
    with grpc.insecure_channel(target) as channel:
        session = create(ControllerServiceStub(channel), "latency", case.workers, case.rows, case.policy)
        count = REPETITIONS * CALLS + 50
        # Both send the same messages, each from a list of its own: what was sent just now is faster to send again.
        echoed, decided = (list(requests("latency", session, case.workers, case.rows, count)) for _ in range(2))
        candidates: dict[str, Callable[[], object]] = {
            "echo": exchange(stream(channel, ECHO), iter(echoed).__next__),
            "decision": exchange(stream(channel, COORDINATE), iter(decided).__next__),
        }
        for _ in range(50):
            for call in candidates.values():
                call()
        seconds = interleave(candidates, REPETITIONS, CALLS)
        answered = ControllerServiceStub(channel).GetJob(pb.GetJobRequest(job="latency")).job.decision.iteration
        assert answered == count, f"{answered} of {count} iterations were taken in"
        ControllerServiceStub(channel).DeleteJob(pb.DeleteJobRequest(job="latency"))
    for name, values in seconds.items():
        report.results[f"{case.name}: {name}"] = Spread.of([value * 1e6 for value in values], "µs")
    title = f"{case.name}: decision / echo"
    report.results[title] = ratio(seconds["decision"], seconds["echo"])
    report.bars.append(Bar(title, report.results[title].median, "<=", case.bar))


def measure_throughput(report: Report, target: str, jobs: int, decisions: int = 6400, repetitions: int = 5) -> None:
    """Count how many answers all jobs get together, each asking as soon as it has one."""
    workers, rows, each = 16, range(1, 17), decisions // jobs
    with grpc.insecure_channel(target) as channel:
        stub = ControllerServiceStub(channel)
        names = [f"throughput-{i}" for i in range(jobs)]
        sessions = [create(stub, name, workers, rows) for name in names]
        prepared = [
            list(requests(name, session, workers, rows, each * repetitions))
            for name, session in zip(names, sessions, strict=True)
        ]
        rates: dict[str, list[float]] = {"echoes": [], "decisions": []}
        for i in range(repetitions):
            part = [own[i * each : (i + 1) * each] for own in prepared]
            rates["echoes"].append(asyncio.run(answers_per_second(target, ECHO, part)))
            rates["decisions"].append(asyncio.run(answers_per_second(target, COORDINATE, part)))
        for name in names:
            stub.DeleteJob(pb.DeleteJobRequest(job=name))
    for kind, values in rates.items():
        report.results[f"{jobs} jobs, n = 16: {kind}"] = Spread.of(values, "/s")
    report.results[f"{jobs} jobs, n = 16: echoes / decisions"] = ratio(rates["echoes"], rates["decisions"])


async def answers_per_second(target: str, method: str, prepared: Sequence[Sequence[pb.CoordinateRequest]]) -> float:
    """Send all requests, those of each job one after the other."""

    async def ask(own: Sequence[pb.CoordinateRequest]) -> None:
        async def outgoing() -> AsyncIterator[pb.CoordinateRequest]:
            for request in own:
                yield request
                await answered.acquire()

        answered = asyncio.Semaphore(0)
        async for _ in stream(channel, method)(outgoing()):
            answered.release()

    async with grpc.aio.insecure_channel(target) as channel:
        begin = time.perf_counter()
        await asyncio.gather(*map(ask, prepared))
        return sum(map(len, prepared)) / (time.perf_counter() - begin)


def measure_memory(report: Report, running: Server, workers: int, jobs: int, iterations: int = 80) -> None:
    """See how much the controller grows with each job that has been through a number of iterations."""
    statm = Path(f"/proc/{running.pid}/statm")
    if not statm.exists():
        print("SKIPPED: the memory of a job, which only Linux tells", file=sys.stderr)
        return

    def resident() -> float:
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 2**20

    rows, names = range(1, workers + 1), [f"memory-{i}" for i in range(jobs)]
    with grpc.insecure_channel(running.target) as channel:
        stub = ControllerServiceStub(channel)
        coordinate = stream(channel, COORDINATE)

        def train(name: str) -> None:
            session = create(stub, name, workers, rows)
            own = requests(name, session, workers, rows, iterations)
            for _ in coordinate(own):
                pass

        train("memory-first")  # what all jobs share is there after it
        before = resident()
        for name in names:
            train(name)
        megabytes = (resident() - before) / jobs
        for name in ("memory-first", *names):
            stub.DeleteJob(pb.DeleteJobRequest(job=name))
    report.results[f"n = {workers}: memory of a job"] = Spread.of([megabytes], "MB")


def measure() -> Report:
    """Measure latency, throughput and memory."""
    report = Report()
    with server() as running:
        for case in CASES:
            measure_latency(report, running.target, case)
        for jobs in (1, 8, 64):
            measure_throughput(report, running.target, jobs)
    with server() as running:
        measure_memory(report, running, 16, 100)
        measure_memory(report, running, 1000, 5)
    return report


def main() -> None:
    """Run the benchmark."""
    run("decision_latency", measure, __doc__)


if __name__ == "__main__":
    main()
