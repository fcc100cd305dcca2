"""Workers whose gradients are known, for tests of a real parameter server: threads, processes to kill, and rogues."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Self

import grpc
import torch
from torch import Tensor

from dbw.v1 import parameter_server_pb2 as pb
from dbw.v1.parameter_server_pb2_grpc import ParameterServerServiceStub
from dbw_ps import pieces
from dbw_ps.checkpoint import CheckpointFolder
from dbw_ps.client import LinkError, Parameters, ParameterServer
from dbw_ps.model import FlatModel
from dbw_ps.tensors import bytes_of
from dbw_runtime.channel import Connection
from tests import models
from tests.forks import PROCESSES
from tests.servers import PATIENCE, wait_until

# Of a server that trains the model of `first_parameters`, and sums so exactly that `is_close` holds after any time.
TINY = ("--model", "tests.models:tiny", "--job", "training", "--accumulate", "float64")
LEARNING_RATE = 0.1  # of a server that is not told another
PUSH = "/dbw.v1.ParameterServerService/PushGradient"


def gradient(parameters: Tensor, worker: int, version: int) -> Tensor:
    """The gradient of a worker, which is different for all workers, versions and parameters."""
    return parameters / 4 + torch.sin(torch.arange(len(parameters)) * (worker + 1.0) + version)


def trained(parameters: Tensor, workers: Sequence[int], versions: Sequence[int]) -> Tensor:
    """What parameters become in these iterations if the gradients of these workers, and no others, are averaged."""
    for version in versions:
        mean = torch.stack([gradient(parameters, worker, version).double() for worker in workers]).mean(0)
        parameters = parameters - LEARNING_RATE * mean.float()
    return parameters


def first_parameters() -> Tensor:
    """What a server begins with that trains `tests.models:tiny`."""
    torch.manual_seed(0)
    return FlatModel(models.tiny()).vector.clone()


def newest(folder: Path) -> tuple[int, Tensor]:
    """The iteration and the parameters of the newest checkpoint of `tests.models:tiny` in a folder."""
    checkpoints = CheckpointFolder(folder)
    found = checkpoints.newest()
    checkpoints.close()
    assert found is not None
    model = FlatModel(models.tiny())
    model.load_state_dict(found[1]["model"])
    return found[0], model.vector


def is_close(one: Tensor, other: Tensor) -> bool:
    """Whether vectors are the same but for the rounding of sums in another order."""
    return torch.allclose(one, other, rtol=1e-5, atol=1e-6)


class Pace:
    """How far workers may go: they compute gradients of versions below the limit, and then wait."""

    def __init__(self, limit: int = 2**62) -> None:
        self._limit = limit
        self._changed = threading.Condition()

    def until(self, limit: int) -> None:
        """Let workers go on to another limit."""
        with self._changed:
            self._limit = limit
            self._changed.notify_all()

    def wait(self, version: int) -> None:
        """Wait until a gradient of this version may be sent."""
        with self._changed:
            self._changed.wait_for(lambda: version < self._limit)


class Worker:
    """A worker in a thread of this process. It remembers all parameters that it got, and what became of gradients."""

    def __init__(
        self,
        connection: Connection,
        id_: str,
        pace: Pace | None = None,
        compute: Callable[[Tensor, int, int], Tensor] = gradient,
    ) -> None:
        self.id, self.number = id_, -1
        self.seen: dict[int, Tensor] = {}
        self.outcomes: list[tuple[int, int | None]] = []  # with versions; None if the link was lost
        self.refused: str | None = None  # why the server will not have it
        self.is_over = False  # whether it was told that training is over
        self._pace, self._compute = pace or Pace(), compute
        self._link = ParameterServer(connection, id_)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=id_, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._train()
        except LinkError as error:
            self.refused = str(error)
        except ValueError:  # gRPC's, when a connection is closed that is in use
            if not self._closing:
                raise

    def _train(self) -> None:
        parameters: Parameters | None = None
        while (parameters := self._link.newer(parameters)) is not None:
            self.number = parameters.session.worker
            self.seen[parameters.version] = parameters.vector
            self._pace.wait(parameters.version)
            if self._closing:
                return
            vector = self._compute(parameters.vector, self.number, parameters.version)
            self.outcomes.append((parameters.version, self._link.push(parameters, vector, loss=1.0)))
        self.is_over = True
        self._link.close("training is over")

    @property
    def used(self) -> list[int]:
        """The versions of its gradients that were used."""
        return [version for version, outcome in self.outcomes if outcome == pb.GRADIENT_OUTCOME_USED]

    def wait_for(self, version: int) -> None:
        """Wait until it has parameters of this version."""
        wait_until(lambda: self.seen and max(self.seen) >= version)

    def join(self) -> None:
        """Wait until it knows that training is over."""
        self._thread.join(PATIENCE)
        assert self.is_over, f"{self.id} has seen {sorted(self.seen)[-3:]}, {self.outcomes[-3:]}, {self.refused}"

    def close(self) -> None:
        """Leave, whatever it does."""
        self._closing = True
        self._pace.until(2**62)
        self._link.close("the test is over")
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@contextmanager
def working(
    target: str,
    count: int,
    pace: Pace | None = None,
    compute: Callable[[Tensor, int, int], Tensor] = gradient,
    connection: Connection | None = None,
) -> Iterator[list[Worker]]:
    """So many workers, at the same pace."""
    where = connection or Connection(target)
    workers = [Worker(where, f"thread-{i}", pace, compute) for i in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()


class Rogue:
    """A worker that says whatever a test tells it to, and no heartbeats."""

    def __init__(self, target: str, id_: str = "rogue") -> None:
        self._channel = grpc.insecure_channel(target)
        self.stub = ParameterServerServiceStub(self._channel)
        self.id = id_
        self.rejoin()

    def rejoin(self) -> None:
        """Join, or join again."""
        self.joined = self.stub.Join(pb.JoinRequest(worker_id=self.id), timeout=PATIENCE)
        self.session, self.number = self.joined.session, self.joined.worker

    @property
    def version(self) -> int:
        """The version of the newest parameters."""
        return self.stub.Heartbeat(pb.HeartbeatRequest(session=self.session)).version

    def wait_until_expected(self, workers: int) -> int:
        """Wait for an iteration that does not end without it, when so many are alive; returns its version."""
        status = pb.GetStatusResponse()

        def expected() -> bool:
            status.CopyFrom(self.stub.GetStatus(pb.GetStatusRequest()))
            return status.k == status.live_workers == workers and status.iteration == self.version

        wait_until(expected)
        return status.iteration

    def header(self, version: int, vector: Tensor, **fields: Any) -> pb.GradientHeader:
        """The header of a gradient, as it should be but for these fields."""
        usual = {"session": self.session, "version": version, "total_bytes": vector.nbytes, "loss": 1.0}
        return pb.GradientHeader(**{**usual, **fields})

    def push(self, *messages: bytes) -> pb.PushGradientResponse:
        """Push messages, whatever they are."""
        push: Any = self._channel.stream_unary(PUSH, None, pb.PushGradientResponse.FromString)
        response: pb.PushGradientResponse = push(iter(messages), timeout=PATIENCE)
        return response

    def push_gradient(self, version: int, vector: Tensor, **fields: Any) -> pb.PushGradientResponse:
        """Push a gradient, as it should be but for these fields of its header."""
        return self.push(*pieces.cut(self.header(version, vector, **fields), bytes_of(vector)))

    def begin_push(self) -> "UnfinishedPush":
        """Begin to push, and wait for what the test says next."""
        return UnfinishedPush(self._channel)

    def half(self, version: int, vector: Tensor, **fields: Any) -> bytes:
        """The first half of a gradient."""
        return first_half(self.header(version, vector, **fields), vector)

    def leave(self) -> None:
        """Leave, so that nobody waits any more."""
        self.stub.Leave(pb.LeaveRequest(session=self.session))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(grpc.RpcError):
            self.leave()
        self._channel.close()


@contextmanager
def heartbeats(rogue: Rogue) -> Iterator[None]:
    """Let a rogue say that it is alive, whatever its gradient does."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.2):
            with suppress(grpc.RpcError):  # while it has no session
                _ = rogue.version

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def first_half(header: pb.GradientHeader, vector: Tensor) -> bytes:
    """The first half of a gradient, as one piece."""
    return pieces.encode(header.SerializeToString(), 0, bytes_of(vector[: len(vector) // 2]))


class UnfinishedPush:
    """A gradient that is being sent, message by message."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._messages: SimpleQueue[bytes | None] = SimpleQueue()
        push: Any = channel.stream_unary(PUSH, None, pb.PushGradientResponse.FromString)
        self.call = push.future(iter(self._messages.get, None))

    def send(self, message: bytes) -> None:
        """Send a message."""
        self._messages.put(message)

    def end(self, timeout: float = PATIENCE) -> pb.PushGradientResponse:
        """Say that there is no more; returns the answer."""
        self._messages.put(None)
        response: pb.PushGradientResponse = self.call.result(timeout)
        return response

    def cancel(self) -> None:
        """Break it off."""
        self.call.cancel()
        self._messages.put(None)


class Stop(NamedTuple):
    """Where a process stands still, to be killed there or told to go on."""

    version: int  # or the first one after it that the worker gets
    point: str  # "parameters" are there, a gradient is "half" sent, or "pushed"


STOPS = ("parameters", "half", "pushed")


class WorkerProcess:
    """A worker in a process of its own."""

    def __init__(self, target: str, id_: str, stop: Stop | None = None) -> None:
        self._pipe, its_end = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=_work, args=(target, id_, stop, its_end), daemon=True)
        self._process.start()
        its_end.close()
        self.events: list[tuple[str, int, int]] = []  # what happened, at which version, to which worker
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._pipe, suppress(EOFError, OSError):  # when it dies
            while True:
                self.events.append(self._pipe.recv())

    def go_on(self) -> None:
        """Go on from where it stands still."""
        self._pipe.send("go on")

    def count(self, what: str) -> int:
        """How often something has happened."""
        return sum(event[0] == what for event in self.events)

    def wait_for(self, what: str, times: int = 1) -> tuple[int, int]:
        """Wait until something has happened so many times; returns the version and the worker's number then."""
        wait_until(lambda: self.count(what) >= times)
        return [event for event in self.events if event[0] == what][times - 1][1:]

    def kill(self) -> None:
        """End it as a power failure would."""
        self._process.kill()
        self.join()

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def join(self) -> None:
        """Wait for its end."""
        self._process.join(PATIENCE)
        assert self._process.exitcode is not None
        self._reader.join(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _work(target: str, id_: str, stop: Stop | None, pipe: "Pipe[Any, Any]") -> None:
    """What a worker process does."""
    parameters: Parameters | None = None
    with ParameterServer(Connection(target), id_) as link:
        while (parameters := link.newer(parameters)) is not None:
            version, number = parameters.version, parameters.session.worker
            stops = stop.point if stop is not None and version >= stop.version else ""
            stop = None if stops else stop  # once
            pipe.send(("parameters", version, number))
            vector = gradient(parameters.vector, number, version)
            if stops == "parameters":
                _stand_still(pipe, version, number)
            if stops == "half":
                header = pb.GradientHeader(
                    session=parameters.session.session, version=version, total_bytes=vector.nbytes
                )
                push = UnfinishedPush(grpc.insecure_channel(target))
                push.send(first_half(header, vector))
                _stand_still(pipe, version, number)
            if link.push(parameters, vector, loss=1.0) == pb.GRADIENT_OUTCOME_USED:
                pipe.send(("used", version, number))
            if stops == "pushed":
                _stand_still(pipe, version, number)
    pipe.send(("over", 0, 0))


def _stand_still(pipe: "Pipe[Any, Any]", version: int, number: int) -> None:
    pipe.send(("stopped", version, number))
    pipe.recv()
