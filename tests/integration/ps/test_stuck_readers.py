"""Readers that stop reading parameters cost the server a small number of versions, and nobody waits for them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import torch

from dbw.v1 import parameter_server_pb2 as pb
from dbw.v1.parameter_server_pb2_grpc import ParameterServerServiceStub
from dbw_ps.publisher import MAX_KEPT
from tests.servers import PATIENCE, ParameterServer, parameter_server, wait_until
from tests.workers import Rogue

ELEMENTS, MEGABYTES = 11_181_642, 45
READERS = 12
# So that little is sent that nobody reads.
SMALL = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024), ("grpc.use_local_subchannel_pool", 1)]


def memory(server: ParameterServer) -> float:
    """How much memory a server has, in megabytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Training:
    """A training that goes on when it is told to."""

    def __init__(self, server: ParameterServer, worker: Rogue) -> None:
        self.server, self._worker, self._version = server, worker, 0

    def iterate(self, times: int = 1) -> None:
        """Go through some iterations."""
        for _ in range(times):
            outcome = self._worker.push_gradient(self._version, torch.zeros(ELEMENTS)).outcome
            assert outcome == pb.GRADIENT_OUTCOME_USED
            self._version += 1
            wait_until(lambda: self._worker.version == self._version)


@contextmanager
def training(*flags: str) -> Iterator[Training]:
    with (
        parameter_server("--model", "tests.models:resnet_sized", "--policy", "static:1", *flags) as server,
        Rogue(server.target) as worker,
    ):
        worker.wait_until_expected(1)
        one = Training(server, worker)
        one.iterate(3)
        yield one


class Reader:
    """Asks for parameters, and reads the header only."""

    def __init__(self, stack: ExitStack, target: str, rpc: str, request: Any) -> None:
        channel = stack.enter_context(grpc.insecure_channel(target, SMALL))
        self._call = getattr(ParameterServerServiceStub(channel), rpc)(request, timeout=PATIENCE)
        self.version = next(self._call).header.version

    def read_on(self) -> tuple[int, int]:
        """Read until a vector is complete; returns its version and how many bytes of it came."""
        header, received = pb.ParametersHeader(version=self.version), 0
        for response in self._call:
            if response.HasField("header"):
                header, received = response.header, 0
            assert response.offset == received
            received += len(response.data)
            if received == 4 * ELEMENTS:
                break
        return header.version, received


def test_observers_that_stop_reading_keep_one_version_in_memory_and_get_a_whole_one_later() -> None:
    with training() as one, ExitStack() as stack:
        before = memory(one.server)
        readers = []
        for _ in range(READERS):
            readers.append(Reader(stack, one.server.target, "PullParameters", pb.PullParametersRequest()))
            one.iterate()
        assert memory(one.server) - before < 2 * MEGABYTES + READERS * 2
        one.iterate()
        newest = readers[-1].version + 2
        seen = [reader.read_on() for reader in readers]
        versions = [readers[0].version] + [newest] * (READERS - 1)
        assert seen == [(version, 4 * ELEMENTS) for version in versions]
        assert memory(one.server) - before < 2 * MEGABYTES + READERS * 2


def test_workers_that_stop_pulling_keep_few_versions_in_memory_and_get_a_whole_one_later() -> None:
    with training("--sync-mode", "pull") as one, ExitStack() as stack:
        before = memory(one.server)
        readers = []
        for i in range(READERS):
            rogue = stack.enter_context(Rogue(one.server.target, f"stuck-{i}"))
            request = pb.PullParametersRequest(session=rogue.session)
            readers.append(Reader(stack, one.server.target, "PullParameters", request))
            one.iterate()
        assert memory(one.server) - before < (MAX_KEPT + 1) * MEGABYTES + READERS * 2
        newest = readers[-1].version + 1
        seen = [reader.read_on() for reader in readers]
        versions = [reader.version for reader in readers[:MAX_KEPT]] + [newest] * (READERS - MAX_KEPT)
        assert seen == [(version, 4 * ELEMENTS) for version in versions]


def test_workers_that_stop_reading_keep_no_versions_in_memory() -> None:
    with training() as one, ExitStack() as stack:
        before = memory(one.server)
        rogues = [stack.enter_context(Rogue(one.server.target, f"stuck-{i}")) for i in range(READERS)]
        readers = []
        for rogue in rogues:
            request = pb.SubscribeRequest(session=rogue.session)
            readers.append(Reader(stack, one.server.target, "Subscribe", request))
            one.iterate()
        assert memory(one.server) - before < MEGABYTES + READERS * 2
        assert readers[0].read_on() == (readers[-1].version + 1, 4 * ELEMENTS)
