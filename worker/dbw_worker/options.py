"""Worker options."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from dbw_ps.models import MODELS
from dbw_runtime.channel import ConnectionOptions
from dbw_runtime.configuration import WrongValueError, option
from dbw_runtime.logs import LogOptions
from dbw_runtime.metrics import split_address
from dbw_worker import delays
from dbw_worker.devices import find_device

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class WorkerOptions(ConnectionOptions, LogOptions):
    """Worker options."""

    server: str = option("127.0.0.1:50052", "the parameter server, HOST:PORT")
    id: str | None = option(None, "the worker's name, its own among all workers; by default that of host and process")
    model: str = option("mlp", f"the server's model: {', '.join(MODELS)}, module:function or file.py:function")
    dataset: str = option(
        "digits", "digits, mnist, fashion-mnist, cifar10 (see dbw data), module:function or file.py:function"
    )
    data_dir: Path | None = option(
        None, "the folder of data sets; by default $DBW_DATA_DIR, or dbw in the user's folder for caches"
    )
    shards: int = option(1, "deal the data set into this many parts at random; each worker sees one")
    batch_size: int = option(64, "how many examples make a gradient")
    parts: int = option(1, "compute the gradient in this many parts, to see how it varies; costs memory and time")
    loss: str = option("cross-entropy", "cross-entropy, mse, module:function or file.py:function, of output and target")
    device: str = option("auto", "where to compute: cpu, cuda, cuda:1, …; auto takes a GPU if there is one")
    precision: Literal["float32", "bfloat16"] = option("float32", "bfloat16 computes in mixed precision")
    threads: int | None = option(None, "how many threads compute on the CPU; by default PyTorch decides")
    seed: int = option(0, "the seed of mini-batches and delays")
    delay: str = option("none", f"be late on purpose, to study stragglers: {delays.FORMS}")
    patience: float | None = option(
        None,
        "seconds without the server after which to give up; by default never. A worker whose token was never accepted"
        " gives up after a minute",
    )
    hung_after: float = option(
        1800.0, "/healthz fails when a gradient takes this many seconds, and ten times as long as any before"
    )
    metrics_listen: str | None = option(
        None, "the address of /metrics and /healthz; by default 127.0.0.1:9466 or, if it is taken, a free port"
    )

    def __post_init__(self) -> None:
        """Refuse options that contradict each other or make no sense."""
        split_address("server", self.server)
        connection = self.connection(self.server)
        try:
            connection.metadata()
        except OSError as error:
            raise WrongValueError("token_file", self.token_file, f"a file with a bearer token; {error}") from error
        for name in ("shards", "batch_size", "parts"):
            self.require_between(name, 1, 2**31)
        self.require_between("seed", 0, 2**63 - 1)
        self.require_between("hung_after", 0.1, 10**9)
        for name in ("threads", "patience"):
            if getattr(self, name) is not None:
                self.require_between(name, 1, 2**31)
        if self.batch_size % self.parts:
            raise WrongValueError("parts", self.parts, f"a divisor of the batch size, {self.batch_size}")
        if self.metrics_listen is not None:
            split_address("metrics_listen", self.metrics_listen)
        try:
            delays.parse_delay(self.delay)
        except ValueError as error:
            raise WrongValueError("delay", self.delay, f"a delay; {error}") from error
        find_device(self.device)

    @property
    def worker_id(self) -> str:
        """The worker's name."""
        return self.id or f"{socket.gethostname()}-{os.getpid()}"
