"""What a slow controller costs a training: the rate of its iterations, beside the same loop without a controller.

A loop whose iterations take 40 ms asks a controller in a process of its own, over a proxy that delays what is sent by
some milliseconds in each direction. Through a "frozen" one nothing gets any more once there was a decision. All loops
run in turn. "Behind" is the number of iterations between the one that a decision was made for and the one that it is
used in.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks._delayed import Way, delayed
from benchmarks._harness import Bar, Report, Spread, interleave, run
from benchmarks.decision_latency import server
from dbw_controller.client import AsyncDbwClient, DbwClient
from dbw_controller.client.training import Training

ITERATION_SECONDS, WORKERS = 0.04, 8
DELAYS = {f"{delay} ms": delay / 1000 for delay in (0, 1, 25, 200, 1000)} | {"frozen": 0.0}
ITERATIONS, REPETITIONS = 50, 6
RATE = 0.9  # of the rate without a controller


def arrive(job: Training) -> dict[str, Any]:
    """All gradients of an iteration; returns what its end reports."""
    for worker in range(WORKERS):
        job.arrived(0.03 if worker < WORKERS - 1 else ITERATION_SECONDS, worker)
    return {
        "loss": 0.999**job.iteration,
        "learning_rate": 0.1,
        "mean_squared_norm": 2.0,
        "sum_squared_norms": 3.0 * job.k,
    }


def measure_client(
    report: Report, client: str, loops: Mapping[str, Callable[[], object]], jobs: dict[str, Any]
) -> None:
    """Compare the rates of loops, of which the first has no controller."""
    behind: dict[str, list[float]] = {name: [] for name in jobs}

    def counted(name: str, loop: Callable[[], object]) -> Callable[[], object]:
        def call() -> None:
            loop()
            if name in jobs and (decision := jobs[name].decision) is not None:
                behind[name].append(jobs[name].iteration - decision.iteration)

        return call

    seconds = interleave({name: counted(name, loop) for name, loop in loops.items()}, REPETITIONS, 1)
    for name, values in seconds.items():
        report.results[f"{client}, {name}: iterations"] = Spread.of([ITERATIONS / value for value in values], "/s")
        if name in jobs:
            if behind[name]:
                report.results[f"{client}, {name}: behind"] = Spread.of(behind[name], "iterations")
            rates = [alone / with_it for alone, with_it in zip(seconds["no controller"], values, strict=True)]
            title = f"{client}, {name}: rate / rate without a controller"
            report.results[title] = Spread.of(rates, "×")
            report.bars.append(Bar(title, report.results[title].median, ">=", RATE))


def measure_sync(report: Report, ways: Mapping[str, Way]) -> None:
    """Loops that sleep in a thread."""
    with ExitStack() as stack:
        jobs = {
            name: stack.enter_context(DbwClient(way.address, deadline=1.0).job(f"sync-{i}", WORKERS))
            for i, (name, way) in enumerate(ways.items())
        }

        def iterate(job: Any = None) -> None:  # noqa: ANN401
            for _ in range(ITERATIONS):
                time.sleep(ITERATION_SECONDS)
                if job is not None:
                    job.end_iteration(**arrive(job))

        while any(job.on_fallback for job in jobs.values()):
            for job in jobs.values():
                iterate(job)
        ways["frozen"].seconds = math.inf
        loops = {"no controller": iterate} | {name: lambda job=job: iterate(job) for name, job in jobs.items()}
        measure_client(report, "DbwClient", loops, jobs)
        ways["frozen"].seconds = 0.0


def measure_async(report: Report, ways: Mapping[str, Way]) -> None:
    """Loops that sleep in an event loop."""
    with asyncio.Runner() as runner:
        jobs = {
            name: AsyncDbwClient(way.address, deadline=1.0).job(f"async-{i}", WORKERS)
            for i, (name, way) in enumerate(ways.items())
        }

        async def iterate(job: Any = None) -> None:  # noqa: ANN401
            for _ in range(ITERATIONS):
                await asyncio.sleep(ITERATION_SECONDS)
                if job is not None:
                    await job.end_iteration(**arrive(job))

        for job in jobs.values():
            runner.run(job.open())
        while any(job.on_fallback for job in jobs.values()):
            for job in jobs.values():
                runner.run(iterate(job))
        ways["frozen"].seconds = math.inf

        def loop(job: Any = None) -> None:  # noqa: ANN401
            runner.run(iterate(job))

        loops: dict[str, Callable[[], object]] = {"no controller": loop}
        loops |= {name: partial(loop, job) for name, job in jobs.items()}
        measure_client(report, "AsyncDbwClient", loops, jobs)
        ways["frozen"].seconds = 0.0
        for job in jobs.values():
            runner.run(job.close(delete=True))


def measure() -> Report:
    """Measure both clients."""
    report = Report()
    with server() as running, ExitStack() as stack:
        ways = {name: stack.enter_context(delayed(running.target, seconds)) for name, seconds in DELAYS.items()}
        measure_sync(report, ways)
        measure_async(report, ways)
    return report


def main() -> None:
    """Run the benchmark."""
    run("slow_controller", measure, __doc__)


if __name__ == "__main__":
    main()
