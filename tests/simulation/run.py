"""One seed: a world, its faults, and whether it came to its end as it should."""

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from dbw_controller.server import service as controller_service
from dbw_runtime.channel import Connection
from tests.simulation.disk import simulated_disks
from tests.simulation.integrator import Integrator
from tests.simulation.invariants import ViolationError
from tests.simulation.nemesis import Fault, Nemesis
from tests.simulation.world import ControllerHost, Training, World

T = TypeVar("T")
# How long an iteration may take while a worker is well, and the whole of a training after the last fault. Both are much
# more than all time-outs together, of workers that have gone, of connections, and of attempts to reach a server.
ITERATION_SECONDS, TRAINING_SECONDS = 120.0, 3600.0
RIVALS = 0.2  # in this share of the worlds two parameter servers claim the same job
INTEGRATORS = 0.25  # and in this one there is a parameter server that is not ours
MEMORY = Path("/dev/shm")  # noqa: S108 (files need not survive, but be written fast)


class Result(NamedTuple):
    """What became of a seed."""

    seed: int
    violation: str | None
    events: list[str]  # what happened, in order
    steps: int  # how many handles ran

    def __str__(self) -> str:
        return "\n".join([*self.events, f"seed {self.seed}: {self.violation or 'no violation'}"])


def run_seed(seed: int, faults: list[Fault] | None = None) -> Result:
    """Simulate the world that a seed stands for."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.exists() else None) as folder, ExitStack() as context:
        world = World(seed, Path(folder))
        context.enter_context(simulated_process(world, seed))
        world.controller.start()
        rivals = world.random.random() < RIVALS
        for number in range(2 if rivals else world.random.choice([1, 2])):
            job = "contested" if rivals else None
            world.trainings.append(Training(world, number, workers=world.random.randrange(1, 5), job=job))
        for host in world.hosts:
            host.start()
        if (other := random.Random(f"integrator {seed}")).random() < INTEGRATORS:
            Integrator(world, other).start()
        violation = None
        try:
            over = world.loop.spawn(None, whole_life(world, Nemesis(world, faults)))
            world.loop.run(over, world.invariants.check)
            over.result()
        except ViolationError as error:
            violation = str(error)
        if violation is None and world.loop.problems:
            violation = world.loop.problems[0]
        steps = world.loop.events
        world.loop.bury()
        for host in world.hosts:
            host.resources.close()
    return Result(seed, violation, world.events, steps)


def play(world: World, scenario: Coroutine[Any, Any, T]) -> T:
    """Let a world run until a scenario has come to its end; returns what that returns."""
    with simulated_process(world, seed=0):
        over = world.loop.spawn(None, scenario)
        world.loop.run(over, world.invariants.check)
        world.loop.bury()
    for host in world.hosts:
        host.resources.close()
    return over.result()  # type: ignore[no-any-return]


@contextmanager
def simulated_process(world: World, seed: int) -> Iterator[None]:
    """Replace what reaches out of the simulation: connections, disks, clocks and randomness of this process."""
    random.seed(seed)
    logging.disable(logging.ERROR)
    try:
        with (
            simulated_disks(world.loop, world.invariants.violated),
            world.invariants.watching(),
            patch.object(Connection, "open_aio", lambda connection: world.network.channel(connection.target)),
            patch("time.perf_counter", partial(simulated_stopwatch, world)),
            patch.object(controller_service, "warm_up", lambda: None),
            patch.object(controller_service, "gc"),
        ):
            yield
    finally:
        logging.disable(logging.NOTSET)


def simulated_stopwatch(world: World) -> float:
    """What decisions are timed by: one takes long now and then, and then the next ones are made in a thread."""
    return world.loop.time() + world.random.choice([0.0, 0.0, 0.0, 0.01])


async def whole_life(world: World, nemesis: Nemesis) -> None:
    """Let trainings go through faults to their end, and see that none stands still."""
    faults = asyncio.ensure_future(nemesis.run())
    calm_since = dict.fromkeys(world.trainings, 0.0)
    iterations = dict.fromkeys(world.trainings, -1)
    last_fault = 0.0
    while not all(training.is_over for training in world.trainings):
        await asyncio.sleep(1.0)
        now = world.loop.time()
        last_fault = last_fault if faults.done() else now
        if (jobs := world.controller.jobs) is not None:
            world.invariants.check_jobs(jobs, now, can_save(world.controller))
        for training in world.trainings:
            if training.iteration != iterations[training] or not can_go_on(training):
                calm_since[training], iterations[training] = now, training.iteration
            elif now - calm_since[training] > ITERATION_SECONDS:
                problem = f"{training.name} has not ended iteration {training.iteration} for {ITERATION_SECONDS:g} s"
                world.invariants.violated(f"{problem}, though a worker was well all the time")
        if now - last_fault > TRAINING_SECONDS:
            world.invariants.violated("training did not end")
    await faults


def can_save(controller: ControllerHost) -> bool:
    """Whether a controller can be expected to write snapshots."""
    process = controller.process
    if process is None or process.is_paused or process.disk_is_full:
        return False
    return process.disk_hangs_until <= controller.world.loop.time()


def can_go_on(training: Training) -> bool:
    """Whether a training can be expected to make progress. Before its first iteration it waits for its workers."""
    invariants = training.world.invariants
    if training.missing_workers and not invariants.has_begun(training.name):
        return False
    return not training.is_over and training.is_running and any(worker.is_well for worker in training.workers)
