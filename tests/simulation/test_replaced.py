"""A parameter server leaves its job to another process of the same name while that lives, and then takes it back."""

import asyncio
from pathlib import Path

from dbw_controller.client import AsyncDbwClient
from dbw_controller.core.spec import SyncMode
from dbw_ps.decider import Source
from dbw_ps.decisions import spec_message_of
from tests.simulation.run import play
from tests.simulation.world import CONTROLLER, Host, endless_training

POLICY, WORKERS = "static:2", 3
ITERATION_SECONDS, STRANGER_SECONDS = 0.5, 20.0
LONG, BACK = 900.0, 500.0  # two looks are four minutes apart at most


class Stranger(Host):
    """Another training that was given the same job."""

    times_replaced = 0

    async def main(self) -> None:
        """Train slowly, until it is killed."""
        spec = spec_message_of(POLICY, SyncMode.PUSH_WAIT)
        job = AsyncDbwClient(CONTROLLER).job("ps-0", WORKERS, spec)
        await job.open()
        while True:
            await asyncio.sleep(STRANGER_SECONDS)
            await job.end_iteration(duration_seconds=STRANGER_SECONDS, loss=1.0)
            self.times_replaced += job.replaced


def test_it_does_not_fight_for_its_job_and_takes_it_back_when_the_other_process_has_gone(tmp_path: Path) -> None:
    world, training = endless_training(tmp_path, WORKERS, controller=CONTROLLER, policy=POLICY, target_loss=None)
    stranger = Stranger(world, "stranger")

    async def source_after(seconds: float) -> tuple[Source | None, bool]:
        await asyncio.sleep(seconds)
        assert training.service is not None
        status = training.service._trainer.status()
        return status.source, status.replaced

    async def scenario() -> None:
        for host in world.hosts:
            host.start()
        await asyncio.sleep(0.001)
        for worker in training.workers:
            assert worker.worker is not None
            worker.worker.mean_seconds = ITERATION_SECONDS
        assert await source_after(10.0) == (Source.CONTROLLER, False)
        stranger.start()
        assert await source_after(LONG) == (Source.FALLBACK, True)
        assert stranger.times_replaced == 0
        stranger.kill()
        assert await source_after(BACK) == (Source.CONTROLLER, False)

    play(world, scenario())
