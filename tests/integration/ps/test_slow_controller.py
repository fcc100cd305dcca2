"""A real parameter server whose controller is far away."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from benchmarks._delayed import delayed
from dbw.v1 import controller_pb2 as pb
from dbw.v1 import parameter_server_pb2 as ps_pb
from dbw_controller.client import AsyncDbwClient, DbwClient
from tests.proxy import Forward, proxied
from tests.servers import PATIENCE, Controller, controller, parameter_server, wait_until
from tests.workers import TINY, Pace, working

SECONDS, ITERATIONS, WORKERS = 0.2, 60, 4  # of delay in each direction


def learnt_iterations(server: Controller, job: str) -> int:
    with server.stub() as stub:
        return stub.GetJob(pb.GetJobRequest(job=job)).job.learnt_iterations


def test_decisions_that_come_late_are_no_fallback_and_every_iteration_is_reported() -> None:
    pace = Pace(0)
    with controller() as decider, delayed(decider.target, SECONDS) as way:
        flags = (
            "--controller",
            way.address,
            "--job",
            "far",
            "--min-workers",
            "2",
            "--decision-deadline",
            str(PATIENCE),
        )
        with parameter_server(*TINY, *flags) as server, working(server.target, 2, pace) as (worker, _):
            for iteration in range(ITERATIONS):
                pace.until(iteration)
                worker.wait_for(iteration)
                assert server.status().decision_source == ps_pb.DECISION_SOURCE_CONTROLLER
                assert "dbw_ps_fallback 0.0" in server.metrics()
            # All but the last iterations, once the answers that were under way are there and another request is sent.
            beyond = iter(range(ITERATIONS, 10**6))

            def is_told() -> bool:
                iteration = next(beyond)
                pace.until(iteration)
                worker.wait_for(iteration)
                return learnt_iterations(decider, "far") >= ITERATIONS

            wait_until(is_told)


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_client_waits_for_its_first_decision_only(kind: str) -> None:
    """All later ones come when all iterations have ended."""
    are_ended = threading.Event()
    ended = {"duration_seconds": 0.01, "k": WORKERS}

    async def train_async(target: str) -> list[bool]:
        async with AsyncDbwClient(target, deadline=PATIENCE).job("job", WORKERS) as job:
            fallbacks = [job.on_fallback]
            for _ in range(ITERATIONS):
                await job.end_iteration(**ended)  # type: ignore[arg-type]
                fallbacks.append(job.on_fallback)
            are_ended.set()
            return fallbacks

    def train(target: str) -> list[bool]:
        with DbwClient(target, deadline=PATIENCE).job("job", WORKERS) as job:
            fallbacks = [job.on_fallback]
            for _ in range(ITERATIONS):
                job.end_iteration(**ended)  # type: ignore[arg-type]
                fallbacks.append(job.on_fallback)
            are_ended.set()
            return fallbacks

    def hold(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        for answer in forward(requests):
            assert rpc != "Coordinate" or are_ended.wait(PATIENCE)
            yield answer

    with controller() as decider, proxied(decider.target, hold) as target:
        fallbacks = train(target) if kind == "sync" else asyncio.run(train_async(target))
    assert fallbacks == [False] * (1 + ITERATIONS)
