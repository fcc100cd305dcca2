"""A user's model that writes down what it computes, and stands still at certain points until a test opens a gate."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from dbw.v1 import parameter_server_pb2 as pb
from tests.proxy import Forward
from tests.servers import wait_until

MODEL = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

FOLDER, STOPS, LAYERS = {folder!r}, {stops!r}, 4
UNSEEN = 2 * LAYERS  # what a worker computes to try its model out, before it joins


def happens(what):
    global UNSEEN
    UNSEEN -= 1
    if UNSEEN >= 0:
        return
    with open(FOLDER + "/computed", "a") as file:
        file.write(what + "\\n")
    if STOPS[:1] == [what]:
        STOPS.pop(0)
        with open(FOLDER + "/gate", "r+b", buffering=0) as gate:  # a pipe, which holds what comes early
            gate.read(1)


class Noted(torch.autograd.Function):
    @staticmethod
    def forward(context, values, layer):
        context.layer = layer
        happens(f"forward {{layer}}")
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        happens(f"backward {{context.layer}}")
        return gradient, None


class Layer(nn.Linear):
    def __init__(self, layer):
        super().__init__(3, 3)
        self.layer = layer

    def forward(self, values):
        return Noted.apply(super().forward(values), self.layer)


def build():
    return nn.Sequential(*(Layer(i) for i in range(LAYERS)))


def examples():
    return TensorDataset(torch.randn(20, 3), torch.zeros(20, dtype=torch.long))
"""


def write_model(folder: Path, *stops: str) -> Path:
    """Write a model that stands still at these points, one after the other."""
    os.mkfifo(folder / "gate")
    path = folder / "model.py"
    path.write_text(MODEL.format(folder=str(folder), stops=list(stops)))
    return path


def work_of(model: Path) -> tuple[str, ...]:
    """What tells a worker to train it."""
    return ("--model", f"{model}:build", "--dataset", f"{model}:examples", "--batch-size", "4")


def computed(folder: Path) -> list[str]:
    """What was computed so far."""
    path = folder / "computed"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def open_gate(folder: Path) -> None:
    """Let the model go on that stands still."""
    with (folder / "gate").open("wb") as gate:
        gate.write(b"x")


class Heartbeats:
    """For a proxy between a worker and its server: lets heartbeats come often, and knows what the worker was told.

    The server's time-out for workers can then be so long that no busy machine makes one time out.
    """

    def __init__(self) -> None:
        self._told = pb.HeartbeatResponse()  # the last answer that the worker has taken in
        self._answer = pb.HeartbeatResponse()

    def __call__(self, rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        """Hand a call on."""
        if rpc == "Heartbeat":  # comes one after the other: the last answer is there
            self._told = self._answer
        for data in forward(requests):
            if rpc == "Heartbeat":
                self._answer = pb.HeartbeatResponse.FromString(data)
            yield soon(data) if rpc == "Join" else data

    def wait_until_told(self, is_news: Callable[[pb.HeartbeatResponse], object]) -> None:
        """Wait until the worker was told some news by a heartbeat, and knows it."""
        wait_until(lambda: is_news(self._told))


def soon(data: bytes) -> bytes:
    """The answer to Join that asks for a heartbeat five times a second."""
    joined = pb.JoinResponse.FromString(data)
    joined.heartbeat_interval_seconds = 0.2
    return joined.SerializeToString()
