"""What chaos is made in: a controller, parameter servers of all kinds, their workers, and the links between them."""

import asyncio
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.chaos.data import HANG_WHILE
from tests.chaos.disk import Disk
from tests.chaos.network import Link, Ports
from tests.chaos.process import Supervised

SAVE_ITERATIONS = 40  # of the controller
CHECKPOINT_ITERATIONS = 25
WORKER_TIMEOUT = 2.0
BATCH_SIZE = 8
TINY, LONG = "tests.models:tiny", "tests.chaos.data:long_model"


class Kind(NamedTuple):
    """A kind of training."""

    name: str
    workers: int
    delay: str
    is_remote: bool  # whether the controller decides
    flags: tuple[str, ...]
    model: str = TINY


KINDS = (
    Kind("vision", 4, "shifted-exp:0.03,0.02", True, ("--sync-mode", "push-wait")),
    Kind("speech", 3, "uniform:0.03,0.08", True, ("--sync-mode", "push-interrupt", "--policy", "sync")),
    Kind(
        "ranking",
        3,
        "uniform:0.1,0.3",
        False,
        ("--sync-mode", "pull", "--policy", "static:2", "--optimizer", "sgd:lr=0.00001"),
        LONG,
    ),
)


class Host:
    """A server and its disk."""

    def __init__(self, process: Supervised, disk: Disk, port: int, metrics_port: int) -> None:
        self.process, self.disk, self.port, self.metrics_port = process, disk, port, metrics_port
        self.name = process.name

    @property
    def target(self) -> str:
        """Where it serves, without the nemesis in between."""
        return f"127.0.0.1:{self.port}"


class Training:
    """A parameter server, its workers, and the links to and from it."""

    def __init__(self, kind: Kind, server: Host) -> None:
        self.kind, self.server, self.name = kind, server, kind.name
        self.workers: list[Supervised] = []
        self.links: list[Link] = []  # of its workers
        self.controller_link: Link | None = None
        self.garbage_until = -math.inf  # on the monotonic clock: infinity while a rogue sends some
        self.saving_disturbed_until = -math.inf  # the wall time until which a checkpoint may take long, for a reason

    @property
    def checkpoints(self) -> Path:
        """Its folder of checkpoints."""
        return self.server.disk.folder / "checkpoints"

    @property
    def log(self) -> Path:
        """Its training log."""
        return self.server.disk.folder / "training.jsonl"

    def hang_file(self, worker: Supervised) -> Path:
        """The file that keeps a worker from its examples while it exists."""
        return self.server.disk.folder.parent.parent / f"{worker.name}.hangs"


class Cluster:
    """All processes, in a folder of their own."""

    def __init__(self, folder: Path, rng: random.Random, kinds: tuple[Kind, ...] = KINDS) -> None:
        self.folder, self._random, self._ports = folder, rng, Ports(rng)
        flags = ("--save-iterations", str(SAVE_ITERATIONS))
        self.controller = self._host("controller", "dbw_controller", "--state-dir", flags)
        self.trainings = [self._training(kind) for kind in kinds]

    def _host(self, name: str, module: str, folder_flag: str, flags: tuple[str, ...]) -> Host:
        disk = Disk(self.folder, name)
        port, metrics_port = self._ports.draw(), self._ports.draw()
        addresses = ("--listen", f"127.0.0.1:{port}", "--metrics-listen", f"127.0.0.1:{metrics_port}")
        own_folder = disk.folder / ("checkpoints" if module == "dbw_ps" else "jobs")
        own = (*addresses, folder_flag, str(own_folder), "--drain-seconds", "2")
        return Host(Supervised(name, module, (*own, *flags), self.folder, self._random), disk, port, metrics_port)

    def _training(self, kind: Kind) -> Training:
        flags = [
            *("--job", kind.name, "--model", kind.model, "--resume", *kind.flags),
            *("--training-log", str(self.folder / "disks" / kind.name / "training.jsonl")),
            *("--checkpoint-iterations", str(CHECKPOINT_ITERATIONS), "--worker-timeout", str(WORKER_TIMEOUT)),
            *("--min-workers", "2", "--linger-seconds", "10"),
        ]
        link = None
        if kind.is_remote:
            link = Link(kind.name, self._ports.draw(), self.controller.port)
            flags += ["--controller", link.target]
        training = Training(kind, self._host(kind.name, "dbw_ps", "--checkpoint-dir", tuple(flags)))
        training.controller_link = link
        for number in range(kind.workers):
            self._add_worker(training, f"{kind.name}-{number}")
        return training

    def _add_worker(self, training: Training, name: str) -> None:
        link = Link(name, self._ports.draw(), training.server.port)
        flags = [
            *("--server", link.target, "--id", name, "--model", training.kind.model, "--batch-size", str(BATCH_SIZE)),
            *("--dataset", "tests.chaos.data:HangingExamples", "--threads", "1", "--delay", training.kind.delay),
            *("--metrics-listen", "127.0.0.1:0"),
        ]
        hang_while = {HANG_WHILE: str(self.folder / f"{name}.hangs")}
        training.workers.append(Supervised(name, "dbw_worker", flags, self.folder, self._random, **hang_while))
        training.links.append(link)

    @property
    def hosts(self) -> list[Host]:
        """All servers."""
        return [self.controller, *(training.server for training in self.trainings)]

    @property
    def links(self) -> list[Link]:
        """All links."""
        return [link for training in self.trainings for link in (training.controller_link, *training.links) if link]

    def processes(self) -> Iterator[Supervised]:
        """All programs."""
        yield self.controller.process
        for training in self.trainings:
            yield training.server.process
            yield from training.workers

    async def run(self) -> None:
        """Start everything, and keep it running until all processes have ended for good."""
        for link in self.links:
            await link.start()
        try:
            await asyncio.gather(*(process.supervise() for process in self.processes()))
        finally:
            for link in self.links:
                await link.close()
