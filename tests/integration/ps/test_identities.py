"""Whose workers there are: ids belong to the identity that joined with them first, and not everybody may join."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from google.rpc.error_details_pb2 import QuotaFailure, RetryInfo

from dbw.v1 import parameter_server_pb2 as pb
from dbw.v1.parameter_server_pb2_grpc import ParameterServerServiceStub
from dbw_runtime.channel import Connection
from tests.reports import failure
from tests.servers import PATIENCE, ParameterServer, parameter_server, wait_until
from tests.workers import TINY, Rogue, Worker

NAMES = ("alice", "bob", "mallory")


@contextmanager
def secured(folder: Path, *flags: str) -> Iterator[tuple[ParameterServer, dict[str, Connection]]]:
    """A server with a token for each name, and how to connect with it."""
    tokens = folder / "tokens"
    tokens.write_text("".join(f"{name} {name}-s3cret\n" for name in NAMES))
    for name in NAMES:
        (folder / name).write_text(f"{name}-s3cret\n")
    with parameter_server(*TINY, "--policy", "sync", "--token-file", str(tokens), *flags) as server:
        yield server, {name: Connection(server.target, token_file=folder / name) for name in NAMES}


class Caller:
    """Calls a server with the credentials of a connection."""

    def __init__(self, stub: ParameterServerServiceStub, connection: Connection) -> None:
        self.stub, self._settings = stub, {"metadata": connection.metadata(), "timeout": PATIENCE}

    def __call__(self, rpc: str, request: Any) -> Any:
        """The answer, or all of them."""
        answer: Any = getattr(self.stub, rpc)(request, **self._settings)
        return list(answer) if isinstance(answer, Iterator) else answer

    def join(self, id_: str) -> str:
        """Join; returns the session."""
        session: str = self("Join", pb.JoinRequest(worker_id=id_)).session
        return session


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """The status and the reason with which a call fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return failure(caught.value)[:2]


NOT_OWNER = (grpc.StatusCode.PERMISSION_DENIED, "NOT_OWNER")


def test_another_identity_neither_takes_a_worker_s_place_nor_uses_its_session(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server, connections = stack.enter_context(secured(tmp_path))
        stub = stack.enter_context(server.stub())
        alice, mallory = (Caller(stub, connections[name]) for name in ("alice", "mallory"))
        session = alice.join("one")
        push: Any = stack.enter_context(grpc.insecure_channel(server.target)).stream_unary(
            "/dbw.v1.ParameterServerService/PushGradient", pb.PushGradientRequest.SerializeToString
        )
        header = pb.GradientHeader(session=session, version=0, total_bytes=156)
        gradient = pb.PushGradientRequest(header=header, data=bytes(156))
        attacks: list[Callable[[], object]] = [
            lambda: mallory.join("one"),
            lambda: mallory("Heartbeat", pb.HeartbeatRequest(session=session)),
            lambda: mallory("Leave", pb.LeaveRequest(session=session)),
            lambda: mallory("Subscribe", pb.SubscribeRequest(session=session)),
            lambda: mallory("PullParameters", pb.PullParametersRequest(session=session)),
            lambda: mallory("NotifyCompletion", pb.NotifyCompletionRequest(session=session)),
            lambda: push(iter([gradient]), metadata=connections["mallory"].metadata(), timeout=PATIENCE),
        ]
        for attack in attacks:
            assert refusal(attack) == NOT_OWNER
        assert alice("Heartbeat", pb.HeartbeatRequest(session=session)).version == 0
        assert mallory("GetStatus", pb.GetStatusRequest()).live_workers == 1, "who is let in may observe"
        wait_until(lambda: mallory("GetStatus", pb.GetStatusRequest()).k == 1)
        assert mallory("PullParameters", pb.PullParametersRequest())
        assert alice.join("two") != session


def test_ids_belong_to_their_identities_also_after_a_restart(tmp_path: Path) -> None:
    kept = ("--checkpoint-dir", str(tmp_path / "checkpoints"), "--checkpoint-seconds", "0")
    with secured(tmp_path, *kept) as (server, connections), server.stub() as stub:
        Caller(stub, connections["alice"]).join("one")
        # Which is written as training begins, after the first one that has no workers.
        newest = tmp_path / "checkpoints/checkpoint-000000000000.pt"
        wait_until(lambda: torch.load(newest)["workers"])
        assert torch.load(newest)["worker_identities"] == {"one": "alice"}
        server.kill()
    with secured(tmp_path, *kept, "--resume") as (server, connections), server.stub() as stub:
        assert refusal(lambda: Caller(stub, connections["mallory"]).join("one")) == NOT_OWNER
        Caller(stub, connections["alice"]).join("one")


def test_a_worker_that_is_refused_ends_and_says_what_to_do(tmp_path: Path) -> None:
    with secured(tmp_path) as (server, connections), server.stub() as stub:
        Caller(stub, connections["alice"]).join("one")
        stranger = Worker(connections["mallory"], "one")
        wait_until(lambda: stranger.refused)
        assert "give this worker an id of its own" in (stranger.refused or "")
        stranger.close()


def test_only_identities_that_are_listed_join(tmp_path: Path) -> None:
    with secured(tmp_path, "--worker-identities", "alice, bob") as (server, connections), server.stub() as stub:
        callers = {name: Caller(stub, connections[name]) for name in NAMES}
        callers["alice"].join("one")
        callers["bob"].join("two")
        assert refusal(lambda: callers["mallory"].join("three")) == NOT_OWNER
        assert callers["mallory"]("GetStatus", pb.GetStatusRequest()).live_workers == 2


def test_not_more_workers_than_allowed_ever_join() -> None:
    with parameter_server(*TINY, "--max-workers", "2") as server, Rogue(server.target, "one") as one:
        with Rogue(server.target, "two"), pytest.raises(grpc.RpcError) as caught:
            Rogue(server.target, "three")
        code, reason, _, (quota, retry) = failure(caught.value)
        assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
        assert isinstance(quota, QuotaFailure)
        assert isinstance(retry, RetryInfo)
        assert [violation.subject for violation in quota.violations] == ["max_workers"]
        one.rejoin()
        with Rogue(server.target, "two") as two:
            assert two.number == 1
