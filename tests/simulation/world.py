"""One controller, some parameter servers and their workers, made of the real services, on one virtual clock."""

import shutil
from collections.abc import Callable
from contextlib import ExitStack, closing
from contextvars import Context
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc
import torch

from dbw_controller.named_policies import policy_from
from dbw_controller.server.jobs import Jobs
from dbw_controller.server.service import ControllerService, Limits
from dbw_controller.server.store import SnapshotStore
from dbw_ps.app import assemble
from dbw_ps.collector import NoUsableGradientsError
from dbw_ps.options import PsOptions
from dbw_ps.service import ParameterServerService
from dbw_ps.training_log import has_entries
from dbw_runtime.configuration import UsageError
from dbw_runtime.durable import FolderError
from dbw_runtime.gate import CallLimits, Gate
from dbw_runtime.rpc import handlers
from dbw_runtime.security import ANYBODY
from dbw_runtime.server import UnsavedError
from tests.simulation.invariants import Invariants
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Listener, Network
from tests.simulation.worker import SimulatedWorker

CONTROLLER = "controller:50051"
# With these errors a program ends as it should, with an exit code for whoever starts it again.
EXIT_CODES = (OSError, UnsavedError, UsageError, FolderError, NoUsableGradientsError)
DRAIN_SECONDS, RESTART_SECONDS = 1.0, 5.0
TARGET_LOSS = 0.001  # which workers never reach that are honest


class World:
    """Everything there is."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self.folder = Random(seed), folder
        self.loop = VirtualLoop(self.random)  # type: ignore[abstract] # asyncio needs no more than it has
        self.network = Network(self.loop, self.random)
        self.invariants = Invariants(lambda process: self.training(process).live_workers)
        self.wall_offset = 0.0  # how far the wall clock has jumped
        self.events: list[str] = []  # what happened, to be shown
        self.controller = ControllerHost(self)
        self.trainings: list[Training] = []

    def training(self, name: str) -> "Training":
        """The training of this name."""
        return next(training for training in self.trainings if training.name == name)

    def wall_clock(self) -> float:
        """The time of day, which may jump."""
        return 1.7e9 + self.loop.time() + self.wall_offset

    def note(self, text: str) -> None:
        """Take note of something that happened; the name of a temporary folder is another one each time."""
        self.events.append(f"{self.loop.time():9.3f}  {text.replace(f'{self.folder}/', '')}")

    @property
    def workers(self) -> "list[WorkerHost]":
        """The workers of all trainings."""
        return [worker for training in self.trainings for worker in training.workers]

    @property
    def hosts(self) -> "list[Host]":
        """All that can fail."""
        return [self.controller, *self.trainings, *self.workers]


class Host:
    """Where a process runs, and runs again after it was killed."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.process: Process | None = None
        self.is_over = False  # it has ended as it should
        self.resources = ExitStack()

    @property
    def is_running(self) -> bool:
        """Whether its process executes code."""
        return self.process is not None and self.process.is_running

    def start(self) -> None:
        """Start a process, unless one runs or none is needed any more."""
        if self.process is None and not self.is_over:
            self.process = Process(self.name)
            self.resources = ExitStack()
            self.world.note(f"{self.name} starts")
            self.world.loop.spawn(self.process, self._run(self.process))

    async def _run(self, process: Process) -> None:
        try:
            await self.main()
        except EXIT_CODES as error:
            self.world.note(f"{self.name} ends, and starts again: {error}")
            self.world.loop.call_later(RESTART_SECONDS, self.start, context=Context())  # not a part of this process
        except Exception as error:
            self.world.invariants.violated(f"{self.name} has failed: {error!r}")
        else:
            self.world.note(f"{self.name} ends")
            self.is_over = True
        self._end(process)

    async def main(self) -> None:
        """What the process does."""
        raise NotImplementedError

    def kill(self) -> None:
        """End the process as a power failure would."""
        if self.process is not None:
            self.world.note(f"{self.name} is killed")
            self._end(self.process)

    def _end(self, process: Process) -> None:
        process.is_alive, self.process = False, None
        self.world.network.died(process)
        self.resources.close()

    async def serve(self, address: str, service: Any) -> None:
        """Serve until the service is done, as `dbw_runtime.server` does."""
        assert self.process is not None
        gate = Gate(ANYBODY, CallLimits(), count_refusal=lambda _: None, clock=self.world.loop.time)
        methods = handlers(service.descriptor, service, gate, service.translate)
        service_handlers = grpc.method_handlers_generic_handler(service.descriptor.full_name, methods)
        self.world.network.listen(address, Listener(self.process, service_handlers))
        await service.warm_up()
        gate.is_open = True
        failure = None
        try:
            await service.done()
        except NoUsableGradientsError as error:
            failure = error
        await gate.drain(DRAIN_SECONDS)
        await service.finish()
        if failure is not None:
            raise failure


class ControllerHost(Host):
    """The controller."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "controller")
        self._save_iterations = world.random.choice([1, 4, 20])
        self.jobs: Jobs | None = None  # those of the running process

    async def main(self) -> None:
        """Serve for ever."""
        store = self.resources.enter_context(closing(SnapshotStore(self.world.folder / "jobs")))
        time, wall_clock = self.world.loop.time, self.world.wall_clock
        self.jobs = Jobs(store, 100, self._save_iterations, clock=time, wall_clock=wall_clock)
        service = ControllerService(self.jobs, Limits(silent_seconds=7 * 86_400), policy_from("dbw-plus"))
        await self.serve(CONTROLLER, service)

    def kill(self) -> None:
        """As every host's; what it had not saved is lost."""
        self.world.invariants.controller_died()
        self.jobs = None
        super().kill()


class Training(Host):
    """A parameter server."""

    def __init__(self, world: World, number: int, workers: int, job: str | None = None) -> None:
        super().__init__(world, f"ps-{number}")
        random = world.random
        self.folder, self._elsewhere = world.folder / self.name, world.folder / f"{self.name}-elsewhere"
        self.log = world.folder / f"{self.name}.jsonl"
        self.address, self.iterations = f"{self.name}:50052", random.randrange(10, 40)
        self.options: Callable[..., PsOptions] = partial(
            PsOptions,
            job=job or self.name,
            model="tests.models:tiny",
            sync_mode=random.choice(["push-wait", "push-interrupt", "pull"]),
            policy=random.choice([None, "dbw", "sync", "static:1"]),
            controller=random.choice([CONTROLLER, CONTROLLER, None]),
            iterations=self.iterations,
            target_loss=TARGET_LOSS,
            min_workers=random.randrange(1, workers + 1),
            worker_timeout=2.0,
            checkpoint_dir=self.folder,
            checkpoint_iterations=random.choice([1, 5, 15]),
            training_log=self.log,
            resume=True,
            fresh=job is not None,  # it may be that of a rival
            linger_seconds=5.0,
        )
        self.service: ParameterServerService | None = None
        self._known_at_start: set[int] = set()  # workers whose norms its checkpoint has
        self.has_liar = False  # a worker that has lied about its loss, once: of more it could not know who is right
        self.rogue: str | None = None  # the worker that sends garbage only, at times
        self.workers = [WorkerHost(world, self, other) for other in range(workers)]

    @property
    def iteration(self) -> int:
        """The iteration under way."""
        return -1 if self.service is None else self.service._trainer.status().iteration

    @property
    def missing_workers(self) -> int:
        """How many more workers it waits for before it begins."""
        return 0 if self.service is None else self.service._trainer.status().missing_workers

    @property
    def live_workers(self) -> int:
        """How many workers are alive, as it sees it."""
        return 0 if self.service is None else self.service._trainer.status().live_workers

    def knows_others(self, worker: str) -> bool:
        """Whether it has had gradients of another worker than this one, to compare its gradients with."""
        others = () if self.service is None else [one for one in self.service._members.all if one.id != worker]
        return any(one.used or one.number in self._known_at_start for one in others)

    async def main(self) -> None:
        """Train."""
        torch.manual_seed(0)
        invariants = self.world.invariants
        invariants.check_log(self.log)
        self.service, _ = assemble(self.options(), self.resources, clock=self.world.loop.time)
        norms = self.service._trainer._progress.usual_norms
        self._known_at_start = {*norms["gradient"]["workers"]} if norms else set()
        invariants.check_resumed(self.name, self.iteration)
        await self.serve(self.address, self.service)
        self.resources.close()
        invariants.check_log(self.log, self.iterations)

    def unmount(self) -> bool:
        """Let its checkpoints be missing when it starts again, unless it may begin without."""
        if self.is_over or self.options().fresh or self._elsewhere.exists() or not has_entries(self.log):
            return False
        self.kill()
        self.folder.rename(self._elsewhere)
        self.start()
        return True

    def mount(self) -> None:
        """Let its checkpoints be there again."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._elsewhere.rename(self.folder)


class WorkerHost(Host):
    """A worker of a training."""

    def __init__(self, world: World, training: Training, number: int) -> None:
        super().__init__(world, f"{training.name}-worker-{number}")
        self.training = training
        self.worker: SimulatedWorker | None = None

    @property
    def is_well(self) -> bool:
        """Whether it works, and is connected."""
        connected = self.world.network.healthy(self.name, self.training.address)
        return self.is_running and connected and self.worker is not None and self.worker.is_well

    async def main(self) -> None:
        """Work until training is over."""
        self.worker = SimulatedWorker(self.name, self.training.address, self.world.network, self.world.random)
        self.worker.others_are_known = partial(self.training.knows_others, self.name)
        await self.worker.run()


def endless_training(folder: Path, workers: int, **options: Any) -> tuple[World, Training]:
    """A world with one training, which begins when all its workers are there, and nothing is saved."""
    world = World(0, folder)
    training = Training(world, 0, workers)
    world.trainings.append(training)
    fixed = {"sync_mode": "push-wait", "iterations": 10**6, "min_workers": workers}
    unsaved = {"checkpoint_dir": None, "resume": False, "training_log": None}
    training.options = partial(training.options, **fixed, **unsaved, **options)
    return world, training
