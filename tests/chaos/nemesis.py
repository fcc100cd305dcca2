"""What goes wrong: faults of all kinds, several at once, each of which ends after some time."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import NamedTuple

from tests.chaos.cluster import WORKER_TIMEOUT, Cluster, Host, Training
from tests.chaos.history import Event, History
from tests.chaos.network import Direction, Link
from tests.chaos.process import Supervised
from tests.chaos.rogue import MANNERS, misbehave

PAUSE = 10.0  # for how long a training may stand still for no reason: this machine is busy
SAVING_SECONDS = 30.0  # after a fault of a disk or the controller, until checkpoints are as frequent as before
DURATIONS = (0.5, 4.0, 12.0, 25.0)  # the longest, in seconds; how long a fault takes is random
HANGS = (*DURATIONS, 30.0, 30.0, 30.0)  # of what must not stop a training, so that it is seen if it does


class Fault(Enum):
    """Kinds of faults, by the names of `--faults`."""

    KILL = "kill"
    STOP = "stop"
    FREEZE = "freeze"
    DELAY = "delay"
    STALL = "stall"
    BLACK_HOLE = "black-hole"
    RESET = "reset"
    REFUSE = "refuse"
    DISK_FULL = "disk-full"
    DISK_HANG = "disk-hang"
    HUNG_DATA = "hung-data"
    ROGUE = "rogue"


NETWORK = (Fault.DELAY, Fault.STALL, Fault.BLACK_HOLE, Fault.RESET, Fault.REFUSE)


class Hurt(NamedTuple):
    """A fault that was chosen: what it is called, whom it touches, and what it does."""

    label: str
    trainings: Sequence[Training]
    do: Callable[[], Awaitable[object]]
    workers: Sequence[str] = ()  # those that it hurts
    stops_training: bool = False  # because it hurts the parameter server
    stops_decisions: bool = False  # because it hurts the controller, or the way to it
    disturbs_saving: bool = False  # checkpoints may take long meanwhile
    fills_disk: bool = False


class Nemesis:
    """Chooses and causes faults."""

    def __init__(
        self, cluster: Cluster, history: History, rng: random.Random, faults: Sequence[Fault], longest: float
    ) -> None:
        self._cluster, self._history, self._random, self._faults = cluster, history, rng, faults
        self._longest = longest  # seconds of a fault

    async def burst(self) -> list[Event]:
        """Cause some faults at about the same time; returns them when all are over."""
        hurts = [self._choose() for _ in range(self._random.choice([1, 2, 3, 4, 6]))]
        return await asyncio.gather(*(self._cause(hurt, hurts) for hurt in hurts if hurt is not None))

    async def _cause(self, hurt: Hurt, all_hurts: "Sequence[Hurt | None]") -> Event:
        await asyncio.sleep(self._random.choice([0.0, 0.5, 3.0]) * self._random.random())
        began = time.monotonic()
        names = tuple(training.name for training in hurt.trainings)
        self._history.note(f"begins: {hurt.label} ({', '.join(hurt.workers or names)})")
        for training in hurt.trainings if hurt.disturbs_saving else ():
            training.saving_disturbed_until = math.inf
        await hurt.do()
        for training in hurt.trainings if hurt.disturbs_saving else ():
            training.saving_disturbed_until = time.time() + SAVING_SECONDS
        self._history.note(f"ends: {hurt.label}")
        self._history.faults[hurt.label] += 1
        pause = self._pause(hurt, all_hurts)
        return Event(hurt.label, names, began, time.monotonic(), pause, hurt.stops_decisions, hurt.fills_disk)

    def _pause(self, hurt: Hurt, all_hurts: "Sequence[Hurt | None]") -> float:
        """How long trainings that this touches may stand still while it lasts."""
        if hurt.stops_training:
            return math.inf
        if not hurt.workers:
            return PAUSE
        (training,) = hurt.trainings
        hurt_workers = {worker for other in all_hurts if other is not None for worker in other.workers}
        well = [worker for worker in training.workers if worker.name not in hurt_workers]
        return PAUSE + 2 * WORKER_TIMEOUT if well else math.inf

    def _seconds(self, longest: Sequence[float] = DURATIONS) -> float:
        return min(self._random.choice(longest) * self._random.uniform(0.3, 1.0), self._longest)

    def _choose(self) -> Hurt | None:
        (fault,) = self._random.choices(self._faults, [3 if fault is Fault.KILL else 1 for fault in self._faults])
        training = self._random.choice(self._cluster.trainings)
        if fault in (Fault.KILL, Fault.STOP, Fault.FREEZE):
            return self._hurt_processes(fault, training)
        if fault in NETWORK:
            return self._hurt_link(fault, training)
        if fault in (Fault.DISK_FULL, Fault.DISK_HANG):
            return self._hurt_disk(fault)
        worker = self._random.choice(training.workers)
        if fault is Fault.HUNG_DATA:
            return Hurt("worker: data set hangs", [training], self._hang(training, worker), [worker.name])
        return self._be_rogue(training)

    def _hurt_processes(self, fault: Fault, training: Training) -> Hurt:
        controller, server = self._cluster.controller, training.server
        everybody = [training for training in self._cluster.trainings if training.kind.is_remote]
        worker = self._random.choice(training.workers)
        all_workers = [worker.name for worker in training.workers]
        verb = {Fault.KILL: "kill -9", Fault.STOP: "SIGTERM", Fault.FREEZE: "SIGSTOP"}[fault]
        match self._random.choice(["controller", "server", "worker", "worker", "all workers", "both servers"]):
            case "controller":
                action = self._signal(fault, [controller.process])
                return Hurt(f"controller: {verb}", everybody, action, stops_decisions=True, disturbs_saving=True)
            case "server":
                action = self._signal(fault, [server.process])
                return Hurt(f"parameter server: {verb}", [training], action, stops_training=True, stops_decisions=True)
            case "worker":
                return Hurt(f"worker: {verb}", [training], self._signal(fault, [worker]), [worker.name])
            case "all workers":
                action = self._signal(fault, training.workers)
                return Hurt(f"all workers of a training: {verb}", [training], action, all_workers)
            case _:
                action = self._signal(fault, [server.process, controller.process])
                touched = list({other.name: other for other in (training, *everybody)}.values())
                label = f"parameter server and controller: {verb}"
                return Hurt(label, touched, action, (), True, True, True)

    def _signal(self, fault: Fault, processes: Sequence[Supervised]) -> Callable[[], Awaitable[object]]:
        async def end(process: Supervised, seconds: float) -> None:
            starts = process.starts
            process.delay_start(seconds)
            if fault is Fault.KILL:
                process.kill()
            else:
                process.stop()
            await process.started_after(starts)

        async def freeze(process: Supervised, seconds: float) -> None:
            process.pause()
            await asyncio.sleep(seconds)
            process.go_on()

        async def act() -> None:
            seconds = self._seconds(HANGS if fault is Fault.FREEZE else DURATIONS)
            how = freeze if fault is Fault.FREEZE else end
            await asyncio.gather(*(how(process, seconds) for process in processes))

        return act

    def _hurt_link(self, fault: Fault, training: Training) -> Hurt:
        """Of one worker, of all workers of a training as if a switch had failed, or of its parameter server."""
        links, label, workers = [self._random.choice(training.links)], "worker to parameter server", True
        match self._random.choice(["one", "all", "controller"]):
            case "all":
                links, label = training.links, "all workers to parameter server"
            case "controller" if training.controller_link is not None:
                links, label, workers = [training.controller_link], "parameter server to controller", False
        directions = self._random.choice([{Direction.UP}, {Direction.DOWN}, set(Direction)])
        how = fault.value
        if fault is Fault.STALL:
            how += " both ways" if len(directions) == 2 else " one way"
        seconds, delay = self._seconds(), self._random.choice([0.02, 0.2, 1.0])

        async def spoil() -> None:
            await asyncio.gather(*(_spoil(fault, link, directions, delay, seconds) for link in links))

        hurt = [link.client for link in links] if workers else []
        return Hurt(
            f"{label}: {how}", [training], spoil, hurt, stops_decisions=not workers, disturbs_saving=not workers
        )

    def _hurt_disk(self, fault: Fault) -> Hurt | None:
        host: Host = self._random.choice(self._cluster.hosts)
        is_full = fault is Fault.DISK_FULL
        kind = "controller" if host is self._cluster.controller else "parameter server"
        label = f"disk of a {kind}: {'full' if is_full else 'hangs'}"
        if host.disk.problem is not None:
            self._history.skipped[label] = host.disk.problem
            return None
        touched = [training for training in self._cluster.trainings if training.server is host]
        remote = [training for training in self._cluster.trainings if training.kind.is_remote]

        async def hurt() -> None:
            seconds = self._seconds(HANGS)
            await (host.disk.fill_for(seconds) if is_full else host.disk.hang_for(seconds))

        return Hurt(label, touched or remote, hurt, disturbs_saving=True, fills_disk=is_full)

    def _hang(self, training: Training, worker: Supervised) -> Callable[[], Awaitable[object]]:
        async def hang() -> None:
            file = training.hang_file(worker)
            file.touch()
            await asyncio.sleep(self._seconds(HANGS))
            file.unlink(missing_ok=True)

        return hang

    def _be_rogue(self, training: Training) -> Hurt:
        manner = self._random.choice(MANNERS)
        name = f"{training.name}-rogue-{self._random.randrange(2)}"

        async def be_rogue() -> None:
            seconds, rng = self._seconds(), random.Random(self._random.random())
            training.garbage_until = math.inf
            await asyncio.to_thread(misbehave, training.server.target, name, manner, seconds, rng)
            training.garbage_until = time.monotonic()

        return Hurt(f"rogue worker {manner}", [training], be_rogue, [name])


async def _spoil(fault: Fault, link: Link, directions: set[Direction], delay: float, seconds: float) -> None:
    """Spoil a link for some time."""
    match fault:
        case Fault.DELAY:
            link.delay = delay
            await asyncio.sleep(seconds)
            link.delay = 0.0
        case Fault.STALL:
            link.stall(directions)
            await asyncio.sleep(seconds)
            link.flow()
        case Fault.BLACK_HOLE:
            link.stall(set(Direction))
            await asyncio.sleep(seconds)
            link.reset()
            link.flow()
        case Fault.RESET:
            link.reset()
        case _:
            await link.refuse()
            await asyncio.sleep(seconds)
            await link.start()
