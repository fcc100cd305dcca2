"""From the first moment of a controller to its last: when it says that it is ready, and what SIGTERM does."""

import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw_runtime.failure import reason_of
from dbw_runtime.server import SETTINGS
from tests.reports import create, failure, whole_iteration
from tests.servers import PATIENCE, Controller, controller, wait_until

SERVICE = "dbw.v1.ControllerService"
NOT_READY = (grpc.StatusCode.UNAVAILABLE, "NOT_READY")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]


@contextmanager
def connected(target: str) -> Iterator[tuple[grpc.Channel, Any]]:
    """A channel, and the health service on it, whose type lacks the rpcs."""
    with grpc.insecure_channel(target) as channel:
        yield channel, HealthStub(channel)


def statuses(health: Any) -> list[str]:
    """The health of the server and of its service."""
    names = ("", SERVICE)
    found = [health.Check(HealthCheckRequest(service=name), timeout=PATIENCE).status for name in names]
    return [HealthCheckResponse.ServingStatus.Name(status) for status in found]


# The beginning

SLOW_START = """
import asyncio, sys
from prometheus_client import CollectorRegistry
from dbw_controller.core.policies import Dbw
from dbw_controller.server.app import ControllerOptions
from dbw_controller.server.jobs import Jobs
from dbw_controller.server.service import ControllerService, Limits
from dbw_runtime.logs import begin_log
from dbw_runtime.server import run, serving

class Service(ControllerService):
    async def warm_up(self) -> None:
        await asyncio.to_thread(sys.stdin.readline)

options = ControllerOptions(
    listen="127.0.0.1:0", metrics_listen="127.0.0.1:0", log_format="json", reflection=False
)
begin_log("controller", options)
run(serving("controller", options, Service(Jobs(None, 10, 100), Limits(), Dbw()), CollectorRegistry()))
"""


@contextmanager
def slow_start() -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """A controller that warms up until it is sent a line, and its address."""
    command, pipe = [sys.executable, "-c", SLOW_START], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        try:
            yield process, f"127.0.0.1:{wait_for(process, 'listening')['grpc_port']}"
        finally:
            process.kill()


def wait_for(process: "subprocess.Popen[str]", message: str) -> dict[str, Any]:
    """The next line of the log with this message, if there is one."""
    assert process.stderr is not None
    lines = map(json.loads, process.stderr)
    return next((line for line in lines if line["message"] == message), {})


def test_a_server_that_warms_up_is_not_ready_and_says_so() -> None:
    with slow_start() as (process, target), connected(target) as (channel, health):
        watch = health.Watch(HealthCheckRequest(service=SERVICE), timeout=PATIENCE)
        assert next(watch).status == HealthCheckResponse.NOT_SERVING
        assert statuses(health) == ["NOT_SERVING", "NOT_SERVING"]
        stub = ControllerServiceStub(channel)
        calls: list[Callable[[], object]] = [
            lambda: stub.ListJobs(pb.ListJobsRequest()),
            lambda: next(stub.Coordinate(iter([pb.CoordinateRequest()]))),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert failure(caught.value)[:2] == NOT_READY

        print(file=process.stdin, flush=True)
        assert next(watch).status == HealthCheckResponse.SERVING
        assert statuses(health) == ["SERVING", "SERVING"]
        stub.ListJobs(pb.ListJobsRequest())
        another = HealthCheckRequest(service="another")
        assert next(health.Watch(another)).status == HealthCheckResponse.SERVICE_UNKNOWN
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            health.Check(another)

        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):  # no reflection was asked for
            ProtoReflectionDescriptorDatabase(channel).get_services()


def test_a_server_that_is_told_to_stop_while_it_warms_up_never_says_that_it_is_ready() -> None:
    with slow_start() as (process, target), connected(target) as (_, health):
        watch = health.Watch(HealthCheckRequest(), timeout=PATIENCE)
        assert next(watch).status == HealthCheckResponse.NOT_SERVING
        process.terminate()
        assert wait_for(process, "told to stop")["signal"] == "SIGTERM"
        print(file=process.stdin, flush=True)
        with pytest.raises(grpc.RpcError):
            next(watch)
        assert wait_for(process, "stopped")
        assert process.wait(PATIENCE) == 0


# The end


class Load:
    """Somebody who asks all the time, in a thread, until that fails."""

    def __init__(self, target: str, job: str, ask: Callable[["Load"], None]) -> None:
        self.job, self._ask = job, ask
        self.channel = grpc.insecure_channel(target)
        self.stub = ControllerServiceStub(self.channel)
        self.session = create(self.stub, job)
        self.answered = 0
        self.error: grpc.RpcError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._ask(self)
        except grpc.RpcError as error:
            self.error = error

    def request(self, iteration: int) -> pb.CoordinateRequest:
        return whole_iteration(self.job, self.session, iteration)

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self.channel.close()


def ask_on_a_stream(load: Load) -> None:
    requests: SimpleQueue[pb.CoordinateRequest] = SimpleQueue()
    requests.put(load.request(0))
    for response in load.stub.Coordinate(iter(requests.get, None)):
        load.answered = response.decision.iteration
        requests.put(load.request(load.answered))


def ask_in_single_calls(load: Load) -> None:
    for iteration in count():
        request = pb.EndIterationRequest.FromString(load.request(iteration).SerializeToString())
        load.answered = load.stub.EndIteration(request).decision.iteration


def ask_once_and_stay(load: Load) -> None:
    """A stream that has nothing to say."""
    requests: SimpleQueue[pb.CoordinateRequest] = SimpleQueue()
    requests.put(load.request(0))
    for response in load.stub.Coordinate(iter(requests.get, None)):
        load.answered = response.decision.iteration


def watch_another(load: Load) -> None:
    """See what happens in the first stream's job."""
    for response in load.stub.WatchJob(pb.WatchJobRequest(job="stream-0")):
        load.answered = -response.job.decision.iteration  # nothing that this one's own job has learnt


def import_half(load: Load) -> None:
    """Send the first piece of a state, and no other."""
    load.answered = -1
    header = pb.JobStateHeader(job=load.job, total_bytes=1000)
    requests: SimpleQueue[pb.ImportJobStateRequest] = SimpleQueue()
    requests.put(pb.ImportJobStateRequest(job=load.job, session=load.session, header=header, data=b"x"))
    load.stub.ImportJobState(iter(requests.get, None))


KINDS: dict[str, tuple[Callable[[Load], None], int]] = {
    "stream": (ask_on_a_stream, 4),
    "idle": (ask_once_and_stay, 2),
    "watch": (watch_another, 2),
    "import": (import_half, 1),
    "unary": (ask_in_single_calls, 2),
}


def test_sigterm_under_load_ends_every_call_in_good_order_and_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    # Nobody may hold it up: with this much patience the test would not see its end.
    flags = ("--state-dir", str(tmp_path), "--drain-seconds", "86400")
    with controller(*flags) as server, connected(server.target) as (_, health):
        watches = [health.Watch(HealthCheckRequest(service=name)) for name in ("", SERVICE)]
        assert [next(watch).status for watch in watches] == [HealthCheckResponse.SERVING] * 2
        loads = [
            Load(server.target, f"{kind}-{i}", ask) for kind, (ask, number) in KINDS.items() for i in range(number)
        ]
        busy = [load for load in loads if load.job.startswith(("stream", "unary"))]
        wait_until(lambda: all(load.answered for load in loads) and all(load.answered > 50 for load in busy))
        server.process.terminate()
        assert [next(watch).status for watch in watches] == [HealthCheckResponse.NOT_SERVING] * 2
        for load in loads:
            load.join()
        assert server.wait() == 0
        assert [line["message"] for line in server.logs if line["message"] in ("draining", "stopped")] == [
            "draining",
            "stopped",
        ]
        assert server.logs[-1]["message"] == "stopped"
        assert not [line for line in server.logs if line["level"] in ("warning", "error")]
        assert server.other_output == []

    for load in loads:
        assert isinstance(load.error, grpc.Call), load.job
        assert load.error.code() is grpc.StatusCode.UNAVAILABLE, load.error
        # A single call may come when nobody listens any more.
        assert reason_of(load.error) == "NOT_READY" or load.job.startswith("unary"), load.error

    with controller(*flags) as server, server.stub() as stub:
        for load in loads:
            learnt = stub.GetJob(pb.GetJobRequest(job=load.job)).job.learnt_iterations
            answered = max(load.answered, 0)
            assert learnt in (answered, answered + 1), f"{load.job}: the last answer may not have come"


class Hammer:
    """Somebody who calls without a pause, whatever the answers are, until the server is gone; and all statuses seen."""

    def __init__(self, target: str, job: str, call: Callable[["Hammer"], object]) -> None:
        self.job, self._call = job, call
        self.channel = grpc.insecure_channel(
            target, [("grpc.use_local_subchannel_pool", 1)]
        )  # and no shared connection
        self.stub = ControllerServiceStub(self.channel)
        self.session = create(self.stub, job)
        self.codes: Counter[grpc.StatusCode] = Counter()
        self.gone = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self.gone.is_set():
            try:
                self._call(self)
                self.codes[grpc.StatusCode.OK] += 1
            except grpc.RpcError as error:
                self.codes[error.code()] += 1

    def join(self) -> None:
        self.gone.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self.channel.close()


def report_on_a_stream(hammer: Hammer) -> None:
    request = whole_iteration(hammer.job, hammer.session, 0)
    for _ in hammer.stub.Coordinate(iter([request] * 10)):
        hammer.codes[grpc.StatusCode.OK] += 1


def watch_for_ever(hammer: Hammer) -> None:
    for _ in hammer.stub.WatchJob(pb.WatchJobRequest(job=hammer.job)):
        hammer.codes[grpc.StatusCode.OK] += 1


HAMMERS: dict[str, Callable[[Hammer], object]] = {
    "end": lambda hammer: hammer.stub.EndIteration(
        pb.EndIterationRequest.FromString(whole_iteration(hammer.job, hammer.session, 0).SerializeToString())
    ),
    "get": lambda hammer: hammer.stub.GetJob(pb.GetJobRequest(job=hammer.job)),
    "list": lambda hammer: hammer.stub.ListJobs(pb.ListJobsRequest()),
    "stream": report_on_a_stream,
    "watch": watch_for_ever,
}


@pytest.mark.parametrize("drain_seconds", ["0", "10"])
def test_a_server_that_stops_under_load_ends_calls_with_unavailable_and_nothing_else(drain_seconds: str) -> None:
    with controller("--drain-seconds", drain_seconds) as server:
        hammers = [Hammer(server.target, f"{kind}-{i}", call) for kind, call in HAMMERS.items() for i in range(3)]
        wait_until(lambda: all(hammer.codes[grpc.StatusCode.OK] for hammer in hammers))
        assert server.stop() == 0
        wait_until(lambda: all(hammer.codes[grpc.StatusCode.UNAVAILABLE] for hammer in hammers))
        for hammer in hammers:
            hammer.join()
            assert set(hammer.codes) == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}, hammer.job
        assert not [line for line in server.logs if line["level"] in ("warning", "error")]
        assert server.other_output == []


@contextmanager
def held_up(drain_seconds: float) -> Iterator[tuple[Controller, Any, Any]]:
    """A controller, a connection, and a call that does not end by itself: somebody watches, and does not read."""
    with (
        controller("--drain-seconds", str(drain_seconds)) as server,
        server.stub() as stub,
        grpc.insecure_channel(server.target, SMALL_WINDOW) as channel,
    ):
        session = create(stub, "resnet")
        watch = ControllerServiceStub(channel).WatchJob(pb.WatchJobRequest(job="resnet", include_estimates=True))
        next(watch)
        for iteration in range(100):
            ended = whole_iteration("resnet", session, iteration)
            stub.EndIteration(pb.EndIterationRequest.FromString(ended.SerializeToString()))
        yield server, stub, watch


def test_a_server_that_drains_refuses_new_calls_and_waits_for_those_that_are_being_served() -> None:
    with held_up(86_400) as (server, stub, watch), connected(server.target) as (channel, health):
        server.process.terminate()
        server.wait_for_log("draining")
        wait_until(lambda: statuses(health) == ["NOT_SERVING", "NOT_SERVING"])
        for another in (stub, ControllerServiceStub(channel)):
            with pytest.raises(grpc.RpcError) as caught:
                another.GetJob(pb.GetJobRequest(job="resnet"))
            assert failure(caught.value)[:2] == NOT_READY
        assert server.process.poll() is None
        with pytest.raises(grpc.RpcError) as caught:
            list(watch)  # and with this nothing holds it up any more
        assert failure(caught.value)[:2] == NOT_READY
        assert server.wait() == 0
        assert server.logs[-1]["message"] == "stopped"


def test_a_call_that_never_ends_is_cut_off_after_the_time_to_drain() -> None:
    with held_up(0.1) as (server, _, watch):
        assert server.stop() == 0
        assert server.logs[-1]["message"] == "stopped"
        with pytest.raises(grpc.RpcError) as caught:
            list(watch)
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


@contextmanager
def watching_health_without_reading(server: Controller) -> Iterator[None]:
    """Somebody who watches the health, and takes in not a single byte of it: gRPC's own clients always take some."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/grpc.health.v1.Health/Watch",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    encoded = b"".join(
        b"\0" + b"".join(bytes([len(word)]) + word.encode() for word in header) for header in headers.items()
    )
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as peer, peer.makefile("rb") as answers:
        peer.sendall(PREFACE + frame(4, 0, 0, b"\0\4" + bytes(4)))  # settings: the initial window is empty
        peer.sendall(frame(1, 4, 1, encoded) + frame(0, 1, 1, bytes(5)))  # headers and an empty message
        kind = None
        while kind != 1:  # headers: the server has begun to answer
            head = answers.read(9)
            kind = head[3]
            answers.read(int.from_bytes(head[:3], "big"))
        yield


def test_nobody_who_watches_the_health_can_keep_a_server_from_stopping() -> None:
    with controller() as server, watching_health_without_reading(server):
        assert server.stop() == 0
        assert server.logs[-1]["message"] == "stopped"


# What else a server offers


def test_reflection_lists_the_services() -> None:
    with controller() as server, connected(server.target) as (channel, _):
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert sorted(services) == [SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]


PING, PING_ANSWER = frame(6, 0, 0, b"12345678"), frame(6, 1, 0, b"12345678")


def pings_answered(port: int, pings: int, seconds_between: float) -> int:
    """Ping a server without ever calling it, until it answers no more."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as peer:
        peer.sendall(PREFACE + frame(4, 0, 0, b""))
        answer = b""
        for sent in range(pings):
            threading.Event().wait(seconds_between)
            peer.sendall(PING)
            while answer.count(PING_ANSWER) <= sent:
                received = peer.recv(65_536)
                answer += received
                if not received or b"too_many_pings" in answer:
                    return answer.count(PING_ANSWER)
    return pings


@pytest.mark.parametrize("options", [SETTINGS, {}], ids=["ours", "of gRPC"])
def test_a_client_may_ping_as_often_as_our_options_say_while_it_calls_nothing(options: dict[str, int]) -> None:
    """A hundred times as fast as in earnest. By gRPC's own options such a client is sent away."""
    interval = "grpc.http2.min_ping_interval_without_data_ms"
    faster = {**options, interval: options[interval] // 100} if options else {}
    server = grpc.server(futures.ThreadPoolExecutor(1), options=list(faster.items()))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert (pings_answered(port, 8, seconds_between=0.06) == 8) == bool(options)
    finally:
        server.stop(None).wait(PATIENCE)


def test_clients_may_ping_every_five_seconds() -> None:
    assert SETTINGS["grpc.http2.min_ping_interval_without_data_ms"] <= 5_000
    assert SETTINGS["grpc.keepalive_permit_without_calls"] == 1
