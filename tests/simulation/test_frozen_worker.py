"""A worker that is frozen is given up by what it sends, whatever is sent to it."""

import asyncio
from pathlib import Path

import pytest

from tests.simulation import network
from tests.simulation.run import play
from tests.simulation.world import endless_training

WORKER_TIMEOUT, HEARTBEAT_SECONDS = 2.0, 0.4
WARM_UP_SECONDS, SAMPLE_SECONDS = 1.0, 0.01


def test_a_frozen_worker_times_out_though_parameters_are_sent_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network takes them for it, as the buffers of connections do with those of a small model."""
    monkeypatch.setattr(network, "WINDOW", 10**6)
    world, training = endless_training(tmp_path, workers=3, policy="static:1", worker_timeout=WORKER_TIMEOUT)

    async def scenario() -> tuple[float, int]:
        for host in world.hosts:
            host.start()
        await asyncio.sleep(WARM_UP_SECONDS)
        assert training.service is not None
        members, frozen = training.service._members, training.workers[0].process
        assert len(members.live) == 3
        assert frozen is not None
        frozen.is_paused = True
        begin, iteration = world.loop.time(), training.iteration
        while len(members.live | members.stalled) == 3:
            await asyncio.sleep(SAMPLE_SECONDS)
        return world.loop.time() - begin, training.iteration - iteration

    seconds, iterations = play(world, scenario())
    assert iterations > 10, "parameters were sent to it all the time"
    assert seconds <= WORKER_TIMEOUT + HEARTBEAT_SECONDS + SAMPLE_SECONDS
