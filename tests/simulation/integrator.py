"""A parameter server that is not ours: the loop of docs/integrating.md, whose workers hang now and then."""

import asyncio
from random import Random
from typing import NamedTuple

from dbw.v1.job_pb2 import DbwPlusPolicy, JobSpec, Policy
from dbw_controller.client import AsyncDbwClient
from tests.simulation.world import CONTROLLER, Host, World

ITERATIONS = 200
HANG_SECONDS = 600.0
TOLERANCE = 0.01  # seconds


class Gradient(NamedTuple):
    """What a worker hands in."""

    worker: int
    iteration: int
    arrived: float


class Integrator(Host):
    """Trains with workers of its own, of which the first one never hangs. Faults are those of its controller."""

    def __init__(self, world: World, random: Random) -> None:
        super().__init__(world, "integrator")
        self._random = random
        self._workers = random.randrange(2, 7)
        self._hang_share = random.choice([0.0, 0.01, 0.1])  # of the gradients
        self._gradients: asyncio.Queue[Gradient] = asyncio.Queue()

    def _compute(self, worker: int, iteration: int) -> None:
        hangs = worker > 0 and self._random.random() < self._hang_share
        seconds = HANG_SECONDS if hangs else 0.05 + self._random.expovariate(20.0)
        done = Gradient(worker, iteration, self.world.loop.time() + seconds)
        self.world.loop.call_later(seconds, self._gradients.put_nowait, done)

    async def main(self) -> None:
        """Train."""
        spec = JobSpec(policy=Policy(dbw_plus=DbwPlusPolicy()), k_min=self._random.randrange(1, self._workers + 1))
        published: list[float] = []
        idle = list(range(self._workers))
        async with AsyncDbwClient(CONTROLLER).job(self.name, self._workers, spec) as job:
            for iteration in range(ITERATIONS):
                for worker in idle:
                    self._compute(worker, iteration)
                idle = []
                published.append(job.published())
                deadline, first = job.deadline_seconds, 0.0
                async for worker, begun, arrived in job.gradients(self._gradients.get):
                    job.arrived(arrived - published[begun], worker, begun)
                    if begun == iteration:
                        first = first or arrived - published[begun]
                        idle.append(worker)
                    else:
                        self._compute(worker, iteration)
                self._check(iteration, self.world.loop.time() - published[iteration], deadline, first)
                await job.end_iteration(loss=1.0, learning_rate=0.1, mean_squared_norm=1.0, variance=10.0)

    def _check(self, iteration: int, seconds: float, deadline: float | None, first: float) -> None:
        """An iteration ends at its deadline, or else with its first gradient."""
        if deadline is not None and seconds > max(deadline, first) + TOLERANCE:
            lasted = f"iteration {iteration} of the integrator lasted {seconds:.3f} s"
            self.world.invariants.violated(f"{lasted}, with a deadline after {deadline:.3f} s")
