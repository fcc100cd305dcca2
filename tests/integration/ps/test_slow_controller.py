"""A real parameter server whose controller is far away."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1 import parameter_server_pb2 as ps_pb
from dbw_controller.client import AsyncDbwClient, DbwClient
from tests.proxy import Forward, proxied
from tests.servers import PATIENCE, Controller, controller, parameter_server, wait_until
from tests.workers import TINY, Pace, working

ITERATIONS, WORKERS = 20, 4


def learnt_iterations(server: Controller, job: str) -> int:
    with server.stub() as stub:
        return stub.GetJob(pb.GetJobRequest(job=job)).job.learnt_iterations


class Held:
    """What lets the answers to reports through, when it is time."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def spoil(self, rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        for answer in forward(requests):
            assert rpc != "Coordinate" or self.released.wait(PATIENCE)
            yield answer


def test_decisions_that_come_late_are_not_waited_for_and_are_no_fallback() -> None:
    """All that come after the first one are held back, and no iteration waits for them; every iteration is reported."""
    pace, held = Pace(0), Held()
    with controller() as decider, proxied(decider.target, held.spoil) as way:
        flags = (*TINY, "--controller", way, "--job", "far", "--min-workers", "2", "--decision-deadline", str(PATIENCE))
        with parameter_server(*flags) as server, working(server.target, 2, pace) as (worker, _):
            for iteration in range(ITERATIONS):
                pace.until(iteration)
                worker.wait_for(iteration)
                assert server.status().decision_source == ps_pb.DECISION_SOURCE_CONTROLLER
                assert "dbw_ps_fallback 0.0" in server.metrics()
            held.released.set()
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
    held = Held()
    ended = {"duration_seconds": 0.01, "k": WORKERS}

    async def train_async(target: str) -> list[bool]:
        async with AsyncDbwClient(target, deadline=PATIENCE).job("job", WORKERS) as job:
            fallbacks = [job.on_fallback]
            for _ in range(ITERATIONS):
                await job.end_iteration(**ended)  # type: ignore[arg-type]
                fallbacks.append(job.on_fallback)
            held.released.set()
            return fallbacks

    def train(target: str) -> list[bool]:
        with DbwClient(target, deadline=PATIENCE).job("job", WORKERS) as job:
            fallbacks = [job.on_fallback]
            for _ in range(ITERATIONS):
                job.end_iteration(**ended)  # type: ignore[arg-type]
                fallbacks.append(job.on_fallback)
            held.released.set()
            return fallbacks

    with controller() as decider, proxied(decider.target, held.spoil) as target:
        fallbacks = train(target) if kind == "sync" else asyncio.run(train_async(target))
    assert fallbacks == [False] * (1 + ITERATIONS)
