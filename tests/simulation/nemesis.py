"""What goes wrong in a simulation: faults at random times, each of which ends after some time."""

import asyncio
from enum import Enum

from tests.simulation.network import Direction
from tests.simulation.world import CONTROLLER, Host, World

STUCK_FACTOR = 10.0  # what is wrong with a worker lasts this many times as long as anything else


class Fault(Enum):
    """Kinds of faults."""

    KILL = "a process is killed, and starts again later"
    LOSE = "a worker is gone for good"
    PAUSE = "a process is frozen"
    RESET = "connections are reset"
    STALL = "messages get stuck, in one direction or both"
    DELAY = "messages take long"
    REPEAT = "a proxy sends requests twice"
    DISK_FULL = "a disk is full"
    DISK_HANG = "a disk hangs"
    UNMOUNT = "a process starts again without its checkpoints"
    CLOCK = "the wall clock jumps"
    STUCK = "a worker's computation stands still"
    IDLE = "a worker has parameters, and computes nothing"
    STALLED_UPLOAD = "a worker's upload stands still in its middle"
    DRIBBLE = "a worker's upload comes in tiny pieces"
    GARBAGE = "a worker's gradient is finite and wrong"
    ONLY_GARBAGE = "all gradients of a worker are finite and wrong"
    LIE = "a worker says a loss that is wrong"


class Nemesis:
    """Chooses faults. A seed has some kinds of them only, so that each gets its time."""

    def __init__(self, world: World, faults: list[Fault] | None = None) -> None:
        self._world, self._random, self._loop = world, world.random, world.loop
        kinds = list(Fault) if faults is None else faults
        self._kinds = self._random.sample(kinds, self._random.randrange(1, len(kinds) + 1))
        self._count = self._random.randrange(1, 16)

    async def run(self) -> None:
        """Cause faults, until there were enough of them."""
        for _ in range(self._count):
            await asyncio.sleep(self._random.choice([0.01, 0.3, 1.0, 5.0]) * self._random.random())
            self._cause(self._random.choice(self._kinds), self._random.choice([0.1, 2.0, 10.0, 60.0]))

    def _cause(self, fault: Fault, longest: float) -> None:
        world, random = self._world, self._random
        seconds = longest * random.random()
        host, worker = random.choice(world.hosts), random.choice(world.workers)
        ends = random.choice(self._links())
        match fault:
            case Fault.KILL:
                self._note(fault, host.name, seconds)
                host.kill()
                self._loop.call_later(seconds, host.start)
            case Fault.LOSE:
                others = [other for other in worker.training.workers if not other.is_over and other is not worker]
                if others and world.invariants.has_begun(worker.training.name):  # before, it waits for all
                    self._note(fault, worker.name, seconds)
                    worker.is_over = True
                    worker.kill()
            case Fault.PAUSE:
                if (process := host.process) is not None:
                    self._note(fault, host.name, seconds)
                    process.is_paused = True
                    self._loop.call_later(seconds, self._loop.resume, process)
            case Fault.RESET:
                self._note(fault, ends[0], seconds)
                world.network.reset(*ends)
            case Fault.STALL:
                self._note(fault, ends[0], seconds)
                directions = random.choice([{Direction.UP}, {Direction.DOWN}, set(Direction)])
                world.network.stall(*ends, directions, seconds)
            case Fault.DELAY:
                self._note(fault, ends[0], seconds)
                link = world.network.link(*ends)
                link.delay = random.choice([0.02, 0.2, 2.0])
                self._loop.call_later(seconds, setattr, link, "delay", 0.0)
            case Fault.REPEAT:
                self._note(fault, ends[0], seconds)
                world.network.link(*ends).repeats_until = self._loop.time() + seconds
            case Fault.DISK_FULL | Fault.DISK_HANG:
                self._hurt_disk(fault, random.choice([world.controller, *world.trainings]), seconds)
            case Fault.UNMOUNT:
                training = random.choice(world.trainings)
                if training.unmount():
                    self._note(fault, training.name, seconds)
                    self._loop.call_later(seconds, training.mount)
            case Fault.CLOCK:
                self._note(fault, "all", 0.0)
                world.wall_offset += random.choice([-3600.0, 3600.0, 8 * 86_400.0])
            case Fault.STUCK:
                if worker.worker is not None:
                    seconds *= STUCK_FACTOR
                    self._note(fault, worker.name, seconds)
                    worker.worker.stuck_until = self._loop.time() + seconds
            case Fault.IDLE | Fault.STALLED_UPLOAD | Fault.DRIBBLE:
                seconds *= STUCK_FACTOR
                names = {Fault.IDLE: "idle", Fault.STALLED_UPLOAD: "stalled", Fault.DRIBBLE: "dribbles"}
                mates = [other for other in worker.training.workers if other is not worker]
                for hurt in random.choice([[worker], mates]):
                    if hurt.worker is not None:
                        self._note(fault, hurt.name, seconds)
                        setattr(hurt.worker, f"{names[fault]}_until", self._loop.time() + seconds)
            case Fault.GARBAGE:
                if worker.worker is not None:
                    self._note(fault, worker.name, 0.0)
                    worker.worker.sends_garbage = True
            case Fault.ONLY_GARBAGE:
                mates = [other for other in worker.training.workers if other is not worker]
                # One of a training, because what it has sent counts as long as it is away, and two of three are most.
                if worker.worker is not None and worker.training.rogue in (None, worker.name):
                    self._note(fault, worker.name, STUCK_FACTOR * seconds)
                    worker.training.rogue = worker.name
                    worker.worker.garbage_until = self._loop.time() + STUCK_FACTOR * seconds
                    for mate in mates if random.random() < 0.5 else []:  # it is alone for some time
                        mate.kill()
                        self._loop.call_later(seconds, mate.start)
            case Fault.LIE:
                if worker.worker is not None and not worker.training.has_liar:
                    self._note(fault, worker.name, 0.0)
                    worker.worker.lies = worker.training.has_liar = True

    def _links(self) -> list[tuple[str, str]]:
        """The process and the address at the ends of each link."""
        world = self._world
        to_controller = [(training.name, CONTROLLER) for training in world.trainings]
        return to_controller + [(worker.name, worker.training.address) for worker in world.workers]

    def _hurt_disk(self, fault: Fault, host: Host, seconds: float) -> None:
        if (process := host.process) is not None:
            self._note(fault, host.name, seconds)
            if fault is Fault.DISK_HANG:
                process.disk_hangs_until = max(process.disk_hangs_until, self._loop.time() + seconds)
            else:
                process.disk_is_full = True
                self._loop.call_later(seconds, setattr, process, "disk_is_full", False)

    def _note(self, fault: Fault, where: str, seconds: float) -> None:
        self._world.note(f"{where}: {fault.value} ({seconds:.3g} s)")
