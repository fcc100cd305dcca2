"""A training with the Python client, watched; `python -m tests.upgrade.training CONTROLLER JOB threads|asyncio`.

It runs with the packages of whichever version is first in the path, so that it imports nothing else of the tests, and
uses only what the last release has. The last line that it prints says what it saw.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import DecisionReason
from dbw_controller.client import EVERY_DECISION, AsyncDbwClient, DbwClient
from dbw_controller.client.training import Training
from dbw_runtime.channel import Connection

WORKERS, ITERATIONS = 4, 20
PATIENT: Any = {"deadline": 60.0, "patience_share": EVERY_DECISION}


def arrive(job: Training) -> dict[str, Any]:
    """All gradients of an iteration; returns what its end reports."""
    for worker in range(WORKERS):
        job.arrived(worker=worker, seconds=(0.1 + 0.01 * worker) * (1 + job.iteration % 3) + 0.3 * (worker == 3))
    loss = 2.0 * 0.999**job.iteration
    return {"loss": loss, "learning_rate": 0.1, "mean_squared_norm": 2.0, "sum_squared_norms": 3.0 * job.k}


def seen(job: Training) -> dict[str, Any]:
    """Where a job stands, as its client knows it."""
    reason = None if job.decision is None else DecisionReason.Name(job.decision.reason)
    return {"iteration": job.iteration, "k": job.k, "reason": reason, "problem": job.problem}


def with_threads(target: str, name: str) -> Mapping[str, Any]:
    """Train, hand what was learnt on to a second job, and delete both."""
    client = DbwClient(target, **PATIENT)
    with client.job(name, WORKERS) as job:
        for _ in range(ITERATIONS):
            job.end_iteration(**arrive(job))
        state, first = job.export_state(), seen(job)
        assert state is not None
        with client.job(f"{name}-2", WORKERS, iteration=ITERATIONS) as second:
            imported = second.import_state(state)
            second.end_iteration(**arrive(second))
            return {"first": first, "imported": imported, "second": seen(second)}


async def with_asyncio(target: str, name: str) -> Mapping[str, Any]:
    """The same."""
    client = AsyncDbwClient(target, **PATIENT)
    async with client.job(name, WORKERS) as job:
        for _ in range(ITERATIONS):
            await job.end_iteration(**arrive(job))
        state, first = await job.export_state(), seen(job)
        assert state is not None
        async with client.job(f"{name}-2", WORKERS, iteration=ITERATIONS) as second:
            imported = await second.import_state(state)
            await second.end_iteration(**arrive(second))
            return {"first": first, "imported": imported, "second": seen(second)}


def main(target: str, name: str, kind: str) -> None:
    """Train, and watch the job until it is deleted."""
    with Connection(target).open() as channel:
        stub = ControllerServiceStub(channel)
        DbwClient(target, **PATIENT).job(name, WORKERS).close()  # so that there is a job to watch
        watched = stub.WatchJob(pb.WatchJobRequest(job=name))
        next(iter(watched))
        result = with_threads(target, name) if kind == "threads" else asyncio.run(with_asyncio(target, name))
        iterations = sum(response.skipped_iterations + 1 for response in watched)
        jobs = [job.name for job in stub.ListJobs(pb.ListJobsRequest()).jobs]
    print(json.dumps({**result, "watched": iterations, "jobs": jobs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
