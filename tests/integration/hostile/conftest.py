"""Servers with tokens, and somebody who behaves well beside those who do not."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Membership
from dbw.v1.parameter_server_pb2 import GetStatusRequest
from dbw.v1.parameter_server_pb2_grpc import ParameterServerServiceStub
from tests.integration.hostile.raw import CONTROLLER, PARAMETER_SERVER
from tests.reports import whole_iteration
from tests.servers import PATIENCE, Server, controller, parameter_server

GOOD, HOSTILE = "good-token", "hostile-token"
AUTHORIZATION = (("authorization", f"Bearer {GOOD}"),)
MAX_IDENTITY_CALLS = 64


class Target(NamedTuple):
    """A server that is attacked."""

    server: Server
    rpc: str  # one that has a single request and answers at once
    ask: Callable[[grpc.Channel], Callable[[int], object]]  # what a good client asks, again and again

    @property
    def memory(self) -> float:
        """The most memory that it has had so far, in MB."""
        lines = Path(f"/proc/{self.server.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**10

    @property
    def descriptors(self) -> int:
        """How many files and connections it has open."""
        return len(list(Path(f"/proc/{self.server.process.pid}/fd").iterdir()))

    @property
    def threads(self) -> int:
        """How many threads it has."""
        return len(list(Path(f"/proc/{self.server.process.pid}/task").iterdir()))


def train(channel: grpc.Channel) -> Callable[[int], object]:
    """Ask a controller, in single calls."""
    stub = ControllerServiceStub(channel)
    request = pb.CreateJobRequest(job="good", membership=Membership(live_workers=4), iteration=0)
    session = stub.CreateJob(request, timeout=PATIENCE, metadata=AUTHORIZATION).session

    def ask(iteration: int) -> object:
        whole = pb.EndIterationRequest.FromString(whole_iteration("good", session, iteration).SerializeToString())
        return stub.EndIteration(whole, timeout=PATIENCE, metadata=AUTHORIZATION)

    return ask


def get_status(channel: grpc.Channel) -> Callable[[int], object]:
    """Ask a parameter server."""
    stub = ParameterServerServiceStub(channel)
    return lambda _: stub.GetStatus(GetStatusRequest(), timeout=PATIENCE, metadata=AUTHORIZATION)


class GoodClient:
    """Asks a server and its health all the time, each time over a connection that is there and over a new one."""

    def __init__(self, target: Target) -> None:
        self._target, self._answers, self.errors = target, 0, list[Exception]()
        self._news, self._stopping = threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with grpc.insecure_channel(self._target.server.target) as channel:
                ask = self._target.ask(channel)
                while not self._stopping.is_set():
                    ask(self._answers)
                    assert_healthy(self._target.server)
                    with self._news:
                        self._answers += 1
                        self._news.notify_all()
        except Exception as error:
            with self._news:
                self.errors.append(error)
                self._news.notify_all()

    def is_served(self) -> bool:
        """Wait until some more answers have come; whether they have, and nothing else."""
        with self._news:
            expected = self._answers + 5
            self._news.wait_for(lambda: self._answers >= expected or self.errors, PATIENCE)
            return self._answers >= expected and not self.errors

    def stop(self) -> None:
        """Stop asking."""
        self._stopping.set()
        self._thread.join(PATIENCE)


def assert_healthy(server: Server) -> None:
    """A server says over a new connection, to somebody without a token, that it serves."""
    with grpc.insecure_channel(server.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        health: Any = HealthStub(channel)  # its type lacks the rpcs
        assert health.Check(HealthCheckRequest(), timeout=PATIENCE).status == HealthCheckResponse.SERVING


@pytest.fixture(scope="module", params=["controller", "parameter server"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Each of the servers, that none of this may make say something is wrong."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"good {GOOD}\nhostile {HOSTILE}\n")
    flags = ("--token-file", str(tokens), "--max-identity-calls", str(MAX_IDENTITY_CALLS))
    running: Server
    if request.param == "controller":
        with controller(*flags) as running:
            yield Target(running, f"{CONTROLLER}GetJob", train)
    else:
        with parameter_server("--model", "tests.models:tiny", *flags) as running:
            yield Target(running, f"{PARAMETER_SERVER}GetStatus", get_status)
    complaints = [line for line in running.logs if line["level"] in ("warning", "error")]
    # A parameter server warns that it has neither workers nor a folder for checkpoints.
    complaints = [line for line in complaints if not line["logger"].startswith("dbw_ps.")]
    assert complaints == []


@pytest.fixture
def good_client(target: Target) -> Iterator[GoodClient]:
    """Somebody who must not notice."""
    client = GoodClient(target)
    assert client.is_served(), client.errors
    yield client
    assert client.is_served(), client.errors
    client.stop()
    assert client.errors == []
