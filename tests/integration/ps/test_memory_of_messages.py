"""What a worker sends costs the server memory in proportion to its size, and bounded by what it may have open."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps.pieces import encode
from dbw_ps.service import CALLS_PER_WORKER
from dbw_ps.tensors import bytes_of
from tests.reports import failure
from tests.servers import PATIENCE, ParameterServer, parameter_server
from tests.workers import PUSH, Rogue

MEGABYTE = 2**20
ALMOST_FOUR = 4 * MEGABYTE - 500  # the largest message, but for what is around it
JOIN, LEAVE = "/dbw.v1.ParameterServerService/Join", "/dbw.v1.ParameterServerService/Leave"


def megabytes(server: ParameterServer, what: str) -> float:
    """How much memory a server has (VmRSS), or had at most (VmHWM)."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) / 1024


@contextmanager
def measured(server: ParameterServer, limit: float) -> Iterator[None]:
    """Assert that the server needs at most this many more megabytes meanwhile."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # VmHWM begins again
    before = megabytes(server, "VmRSS")
    yield
    assert megabytes(server, "VmHWM") - before < limit


def layout(count: int, name: str = "", shape: tuple[int, ...] = ()) -> pb.ModelLayout:
    return pb.ModelLayout(parameters=[pb.Tensor(name=name, shape=shape)] * count)


# Per megabyte that is sent, with numbers of a byte each in a shape and escapes of ten characters in a text.
@pytest.mark.parametrize(
    ("rpc", "make", "factor"),
    [
        (JOIN, lambda _: pb.JoinRequest(worker_id="\U000e0001" * (ALMOST_FOUR // 4)), 8),
        (JOIN, lambda _: pb.JoinRequest(worker_id="w", layout=layout(1, "x" * ALMOST_FOUR)), 8),
        (JOIN, lambda _: pb.JoinRequest(worker_id="w", layout=layout(1, "x", (1,) * ALMOST_FOUR)), 24),
        (JOIN, lambda _: pb.JoinRequest(worker_id="w", layout=layout(40_000, "x" * 100)), 8),
        (LEAVE, lambda session: pb.LeaveRequest(session=session, reason="\U000e0001" * (ALMOST_FOUR // 4)), 8),
    ],
    ids=["id", "name", "shape", "tensors", "reason"],
)
def test_a_large_message_costs_a_small_multiple_of_its_size(
    rpc: str, make: Callable[[str], Any], factor: float
) -> None:
    with parameter_server("--model", "tests.models:tiny") as server, Rogue(server.target) as rogue:
        message = make(rogue.session).SerializeToString()
        with grpc.insecure_channel(server.target) as channel:
            call: Any = channel.unary_unary(rpc)
            with suppress(grpc.RpcError):
                call(b"", timeout=PATIENCE)
            with measured(server, factor * len(message) / MEGABYTE), suppress(grpc.RpcError):
                call(message, timeout=PATIENCE)
        assert all(len(str(line)) < 3000 for line in server.logs)


def test_a_gradient_in_tiny_pieces_takes_no_more_than_its_size() -> None:
    count = 30_000
    with parameter_server("--model", "tests.models:large") as server, Rogue(server.target) as rogue:
        rogue.wait_until_expected(1)
        vector = torch.zeros(1_201_200)
        data = bytes_of(vector)
        messages = [encode(None, 4 * i, data[4 * i : 4 * i + 4]) for i in range(count)]
        assert rogue.push_gradient(0, vector).outcome == pb.GRADIENT_OUTCOME_USED
        rogue.wait_until_expected(1)
        header = rogue.header(rogue.version, vector).SerializeToString()
        with measured(server, 10.0), pytest.raises(grpc.RpcError) as caught:
            rogue.push(encode(header, 0, data[:0]), *messages)
        assert failure(caught.value)[:2] == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")


def test_a_worker_has_not_more_calls_than_allowed() -> None:
    with parameter_server("--model", "tests.models:large") as server, ExitStack() as stack:
        rogue = stack.enter_context(Rogue(server.target))
        rogue.wait_until_expected(1)
        channel = stack.enter_context(grpc.insecure_channel(server.target))
        half = rogue.half(0, torch.zeros(1_201_200))
        push: Any = channel.stream_unary(PUSH)
        request = pb.SubscribeRequest(session=rogue.session)
        streams = [rogue.stub.Subscribe(request, timeout=PATIENCE) for _ in range(CALLS_PER_WORKER)]
        for stream in streams:
            next(stream)
        for call in (lambda: push(iter([half]), timeout=PATIENCE), lambda: next(rogue.stub.Subscribe(request))):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            code, reason, _, (quota, _) = failure(caught.value)
            assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
            assert [violation.subject for violation in quota.violations] == ["calls_per_worker"]
        with Rogue(server.target, "another") as another:
            assert next(another.stub.Subscribe(pb.SubscribeRequest(session=another.session))).header.version == 0
