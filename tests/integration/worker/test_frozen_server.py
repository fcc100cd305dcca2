"""A worker outlives a server that stands still, with a connection that stays up, and joins it again."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
import torch

from dbw.v1 import parameter_server_pb2 as pb
from dbw.v1 import parameter_server_pb2_grpc as rpcs
from dbw.v1.sync_mode_pb2 import SYNC_MODE_PULL, SYNC_MODE_PUSH_WAIT, SyncMode
from dbw_ps import client, messages
from dbw_ps.client import LinkError, ParameterServer
from dbw_ps.model import FlatModel
from dbw_runtime.channel import Connection
from tests import models
from tests.servers import PATIENCE, parameter_server, wait_until
from tests.workers import Pace, first_parameters, working


@pytest.mark.parametrize("mode", ["push-wait", "pull"])
def test_a_server_that_is_frozen_within_uploads_is_joined_again(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CALL_SECONDS", 3.0)
    pace, flags = Pace(3), ("--model", "tests.models:large", "--policy", "sync", "--min-workers", "2")
    with (
        parameter_server(*flags, "--sync-mode", mode, "--worker-timeout", "1") as server,
        working(server.target, 2, pace, compute=lambda parameters, *_: parameters) as workers,
    ):
        for worker in workers:
            worker.wait_for(3)
        server.process.send_signal(signal.SIGSTOP)
        pace.until(2**62)
        wait_until(lambda: all((3, None) in worker.outcomes for worker in workers))
        server.process.send_signal(signal.SIGCONT)
        for worker in workers:
            worker.wait_for(8)


def first_version() -> tuple[pb.ParametersHeader, bytes]:
    vector = first_parameters().numpy().tobytes()
    return pb.ParametersHeader(version=0, total_bytes=len(vector)), vector


class Hanging(rpcs.ParameterServerServiceServicer):
    """A server whose calls hang, but for those that join. It answers pings, because its connections work."""

    def __init__(self, mode: "SyncMode.ValueType") -> None:
        self.joined = 0
        self.heartbeats: list[pb.HeartbeatRequest] = []
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        self._mode = mode

    def Join(self, _: pb.JoinRequest, __: object) -> pb.JoinResponse:  # noqa: N802
        self.joined += 1
        layout = messages.layout_message(FlatModel(models.tiny()).layout)
        mode = self._mode
        return pb.JoinResponse(
            session=f"session-{self.joined}", sync_mode=mode, layout=layout, heartbeat_interval_seconds=0.02
        )

    def Heartbeat(self, request: pb.HeartbeatRequest, _: object) -> pb.HeartbeatResponse:  # noqa: N802
        self.heartbeats.append(request)
        if self.hangs.is_set():
            self.goes_on.wait()
        return pb.HeartbeatResponse()

    def Subscribe(self, _: pb.SubscribeRequest, __: object) -> Iterator[pb.SubscribeResponse]:  # noqa: N802
        header, vector = first_version()
        yield pb.SubscribeResponse(header=header, data=vector)
        self.goes_on.wait()

    def PullParameters(  # noqa: N802
        self, request: pb.PullParametersRequest, _: object
    ) -> Iterator[pb.PullParametersResponse]:
        if request.HasField("known_version"):
            self.goes_on.wait()
        header, vector = first_version()
        yield pb.PullParametersResponse(header=header, data=vector)

    def PushGradient(self, _: object, __: object) -> pb.PushGradientResponse:  # noqa: N802
        self.goes_on.wait()
        return pb.PushGradientResponse()


@contextmanager
def hanging(mode: "SyncMode.ValueType") -> Iterator[tuple[Hanging, Connection]]:
    with ThreadPoolExecutor(50) as threads:
        server, service = grpc.server(threads), Hanging(mode)  # type: ignore[abstract]
        rpcs.add_ParameterServerServiceServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield service, Connection(f"127.0.0.1:{port}")
        finally:
            service.goes_on.set()
            server.stop(None).wait()


@pytest.mark.parametrize("mode", [SYNC_MODE_PUSH_WAIT, SYNC_MODE_PULL], ids=["push", "pull"])
@pytest.mark.parametrize("within", ["a push", "a wait for parameters"])
def test_a_server_that_hangs_while_its_connection_works_is_joined_again(
    mode: "SyncMode.ValueType", within: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CALL_SECONDS", 0.5)
    with hanging(mode) as (service, connection), ParameterServer(connection, "patient", patience=PATIENCE) as link:
        parameters = link.newer(None)
        assert parameters is not None
        service.hangs.set()
        if within == "a push":
            assert link.push(parameters, torch.zeros_like(parameters.vector)) is None
        again = link.newer(parameters)
        assert again is not None
        assert again.session.session != parameters.session.session
        assert service.joined >= 2


def test_heartbeats_say_what_is_computed_and_since_when() -> None:
    with hanging(SYNC_MODE_PULL) as (service, connection), ParameterServer(connection, "talkative") as link:

        def computing() -> list[float]:
            return [beat.computing_seconds for beat in service.heartbeats if beat.HasField("computing_version")]

        assert link.session.session == "session-1"
        wait_until(lambda: service.heartbeats)
        assert link.computing_seconds is None
        assert not computing(), "it has no parameters"
        parameters = link.newer(None)
        assert parameters is not None
        wait_until(lambda: len(computing()) >= 3)
        seen = computing()
        assert seen == sorted(seen)
        assert (link.computing_seconds or 0) >= seen[-1]
        pushing = threading.Thread(target=link.push, args=(parameters, torch.zeros_like(parameters.vector)))
        pushing.start()
        wait_until(lambda: not service.heartbeats[-1].HasField("computing_version"))
        assert link.computing_seconds is None
        service.goes_on.set()
        pushing.join()


def test_a_worker_that_is_told_to_stop_does_not_wait_for_a_server_that_does_not_let_it_join() -> None:
    with parameter_server("--model", "tests.models:tiny") as server:
        server.process.send_signal(signal.SIGSTOP)
        link, refused = ParameterServer(Connection(server.target), "stopped"), []

        def join() -> None:
            try:
                link.newer(None)
            except LinkError as error:
                refused.append(error)

        joining = threading.Thread(target=join)
        joining.start()
        wait_until(link._joining.locked)
        link.close("stopped")
        joining.join()
        assert refused


def test_a_worker_that_is_told_to_stop_just_before_it_joins_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is closed by then."""
    monkeypatch.setattr(client, "LEAVE_SECONDS", 0.0)
    link = ParameterServer(Connection("127.0.0.1:1"), "stopped")
    join = link._join

    def stop_and_join() -> pb.JoinResponse:
        link.close("stopped")
        return join()

    monkeypatch.setattr(link, "_join", stop_and_join)
    with pytest.raises(LinkError, match="has left"):
        link.newer(None)
