"""Nobody uses up what others need: calls, memory, connections and threads of a server."""

import socket
import zlib
from urllib.request import urlopen

import pytest
from grpc import StatusCode

from tests.integration.hostile.conftest import HOSTILE, MAX_IDENTITY_CALLS, GoodClient, Target, assert_healthy
from tests.integration.hostile.raw import CHECK, REFLECTION, RawClient, framed
from tests.servers import PATIENCE, controller, wait_until

UNAUTHENTICATED, EXHAUSTED, CANCELLED = (
    code.value[0] for code in (StatusCode.UNAUTHENTICATED, StatusCode.RESOURCE_EXHAUSTED, StatusCode.CANCELLED)
)
MEGABYTE = 2**20
CONNECTIONS, CALLS = 40, 105  # of each: more than a server takes together
NOISE_MB = 24.0  # by which a server may grow for other reasons


def begun(client: RawClient, rpc: str, calls: int) -> list[int]:
    """Begin calls, and send nothing but their headers."""
    client.receive()
    numbers = [client.begin(rpc) for _ in range(calls)]
    client.flush()
    return numbers


# Calls


@pytest.mark.parametrize("rpc", ["one of the service", REFLECTION])
def test_calls_without_a_token_are_refused_at_their_headers(target: Target, good_client: GoodClient, rpc: str) -> None:
    clients = [RawClient(target.server.port) for _ in range(CONNECTIONS)]
    for client in clients:
        begun(client, rpc if rpc == REFLECTION else target.rpc, CALLS)
    assert good_client.is_served()
    for client in clients:
        client.receive_until(lambda: len(client.statuses) == CALLS)  # noqa: B023 (it is called here)
        assert set(client.statuses.values()) == {UNAUTHENTICATED}
        client.close()


def test_one_identity_has_only_so_many_calls_open(target: Target, good_client: GoodClient) -> None:
    too_many = 10
    with RawClient(target.server.port, HOSTILE) as client:
        begun(client, target.rpc, MAX_IDENTITY_CALLS + too_many)
        client.receive_until(lambda: len(client.statuses) == too_many)
        assert set(client.statuses.values()) == {EXHAUSTED}
        assert good_client.is_served()
        assert len(client.statuses) == too_many


def test_streams_of_reflection_do_not_take_the_place_of_calls(target: Target, good_client: GoodClient) -> None:
    with RawClient(target.server.port, HOSTILE) as client:
        calls = begun(client, REFLECTION, 30)
        client.receive_until(lambda: len(client.statuses) == len(calls) - 8)
        assert set(client.statuses.values()) == {EXHAUSTED}
        assert good_client.is_served()


def test_calls_of_the_health_service_that_send_nothing_make_room_for_those_that_do(
    target: Target, good_client: GoodClient
) -> None:
    with RawClient(target.server.port) as client:
        begun(client, CHECK, 120)
        assert good_client.is_served()
        client.receive_until(lambda: EXHAUSTED in client.statuses.values())


def test_checks_of_health_whose_answer_is_not_read_make_room_for_others(
    target: Target, good_client: GoodClient
) -> None:
    with RawClient(target.server.port, window=0) as client:
        client.receive()
        for _ in range(120):
            client.ask(CHECK)
        assert good_client.is_served()
        assert_healthy(target.server)


def test_calls_whose_answers_are_not_read_count_as_open(target: Target, good_client: GoodClient) -> None:
    too_many = 10
    with RawClient(target.server.port, HOSTILE, window=0) as client:
        client.receive()
        rpc = target.rpc.replace("GetJob", "ListJobs")
        for _ in range(MAX_IDENTITY_CALLS + too_many):
            client.ask(rpc)
        client.receive_until(lambda: len(client.statuses) == too_many)
        assert set(client.statuses.values()) == {EXHAUSTED}
        assert good_client.is_served()


# Memory


def test_the_health_service_keeps_little_of_what_anybody_sends(target: Target, good_client: GoodClient) -> None:
    before = target.memory
    with RawClient(target.server.port) as client:
        client.receive()
        calls = [client.begin(CHECK) for _ in range(100)]
        sent = dict.fromkeys(calls, 0)
        body = framed(bytes(MEGABYTE), 2 * MEGABYTE)
        while unfinished := [call for call in calls if sent[call] < len(body) and not client.is_over(call)]:
            for call in unfinished:
                sent[call] += client.send(call, body[sent[call] :])
            client.receive(0.1)
        assert good_client.is_served()
    assert target.memory - before < 16 * 2 + NOISE_MB


def test_nothing_is_kept_of_what_a_caller_without_a_token_sends(target: Target, good_client: GoodClient) -> None:
    before = target.memory
    clients = [RawClient(target.server.port) for _ in range(4)]
    for client in clients:
        client.receive()
        for _ in range(25):  # 100 messages of 4 MB without their end
            client.send(client.begin(target.rpc), framed(bytes(MEGABYTE), 4 * MEGABYTE - 1))
    assert good_client.is_served()
    for client in clients:
        client.receive_until(lambda: len(client.statuses) == 25)  # noqa: B023
        assert set(client.statuses.values()) == {UNAUTHENTICATED}
        client.close()
    assert target.memory - before < NOISE_MB


def send_all(client: RawClient, call: int, data: bytes) -> None:
    """Send data as fast as the server takes it, and wait for the end of the call."""
    sent = client.send(call, data, end=True)
    while sent < len(data) and not client.is_over(call):
        client.receive()
        sent += client.send(call, data[sent:], end=True)
    client.receive_until(lambda: client.is_over(call))


def test_a_small_message_does_not_become_a_large_one(target: Target, good_client: GoodClient) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(bytes(200 * MEGABYTE)) + packer.flush()
    before = target.memory
    with RawClient(target.server.port, HOSTILE) as client:
        client.receive()
        for _ in range(5):
            call = client.begin(target.rpc, ("grpc-encoding", "gzip"))
            send_all(client, call, framed(packed, compressed=True))
        assert set(client.statuses.values()) == {EXHAUSTED}
    assert good_client.is_served()
    assert target.memory - before < NOISE_MB


@pytest.mark.parametrize("announced", [5 * MEGABYTE, 2**32 - 1])
def test_a_message_that_is_too_large_is_refused_before_it_is_there(
    target: Target, good_client: GoodClient, announced: int
) -> None:
    before = target.memory
    with RawClient(target.server.port, HOSTILE) as client:
        client.receive()
        calls = [client.begin(target.rpc) for _ in range(MAX_IDENTITY_CALLS)]
        for call in calls:
            client.send(call, framed(bytes(1000), announced))
        client.receive_until(lambda: len(client.statuses) == len(calls))
        assert set(client.statuses.values()) <= {EXHAUSTED, CANCELLED, None}
    assert good_client.is_served()
    assert target.memory - before < NOISE_MB


def test_calls_that_are_begun_and_reset_leave_nothing_behind(target: Target, good_client: GoodClient) -> None:
    before = target.memory
    for token in (None, HOSTILE):
        client = RawClient(target.server.port, token)
        client.receive()
        for number in range(10_000):
            client.h2.reset_stream(client.begin(target.rpc))
            if number % 100 == 99:
                client.flush()
            if client.is_closed:
                break
        assert good_client.is_served()
        client.close()
    assert target.memory - before < 2 * NOISE_MB


def test_endless_pings_and_settings_are_not_kept(target: Target, good_client: GoodClient) -> None:
    before = target.memory
    frames = {
        "pings": b"\0\0\x08\x06\0\0\0\0\0" + bytes(8),
        "settings": b"\0\0\x06\x04\0\0\0\0\0" + b"\0\x04\0\0\xff\xff",
        "window updates": b"\0\0\x04\x08\0\0\0\0\0" + b"\0\0\0\x01",
        "an unknown kind": b"\0\x04\0\xee\0\0\0\0\0" + bytes(1024),
    }
    for frame in frames.values():
        with RawClient(target.server.port, HOSTILE) as client:
            client.receive()
            try:
                for _ in range(200):
                    client.socket.sendall(100 * frame)
            except OSError:  # the server may hang up, and gRPC's does after some pings
                pass
        assert good_client.is_served()
    assert target.memory - before < NOISE_MB


def test_metadata_is_bounded(target: Target, good_client: GoodClient) -> None:
    before = target.memory
    with RawClient(target.server.port, HOSTILE) as client:
        client.receive()
        for number in range(20):
            client.begin(target.rpc, *((f"x-{number}-{i}", 1000 * "x") for i in range(15)))
        client.flush()
        client.receive_until(lambda: len(client.statuses) == 20)
        assert 0 not in client.statuses.values()
    with RawClient(target.server.port, HOSTILE) as client:  # headers that never end
        client.receive()
        continuation = b"\0\x40\0\x09\0\0\0\0\x01" + bytes(16384)
        try:
            client.socket.sendall(b"\0\0\0\x01\0\0\0\0\x01")
            for _ in range(1000):
                client.socket.sendall(continuation)
        except OSError:
            pass
    assert good_client.is_served()
    assert target.memory - before < NOISE_MB


# Connections and threads


def connect(port: int, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE)
    connection.sendall(sent)
    return connection


@pytest.mark.parametrize(
    "sent", [b"", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nHost: " + 60_000 * b"x"]
)
def test_those_who_connect_to_the_metrics_and_say_nothing_do_not_keep_others_from_them(
    target: Target, good_client: GoodClient, sent: bytes
) -> None:
    target.server.metrics()
    threads, descriptors = target.threads, target.descriptors
    silent = [connect(target.server.metrics_port, sent) for _ in range(100)]
    assert "dbw" in target.server.metrics()
    assert target.threads <= threads + 1, "each has a thread of its own"
    wait_until(lambda: target.descriptors < descriptors + 50)
    assert good_client.is_served()
    for connection in silent:
        connection.close()


@pytest.mark.parametrize("request_line", [b"", b"\0\xff", b"GET", b"GET / HTTP/1.1 x", b"POST /metrics HTTP/1.1"])
def test_requests_for_metrics_that_make_no_sense_are_refused(target: Target, request_line: bytes) -> None:
    with connect(target.server.metrics_port, request_line + b"\r\n\r\n") as connection:
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 405 "))


def test_connections_that_say_nothing_end_and_leave_room_for_files_and_metrics() -> None:
    most = 30
    with controller("--max-connections", str(most)) as server:
        silent = [connect(server.port) for _ in range(2 * most)]
        assert "dbw" in server.metrics()
        wait_until(lambda: is_served(server.port))  # when the silent ones have had their time
        for connection in silent:
            connection.close()


def is_served(port: int) -> bool:
    with RawClient(port) as client:
        call = client.ask(CHECK)
        client.receive_until(lambda: client.is_over(call))
        return client.statuses.get(call) == 0


def test_a_scrape_takes_no_thread_with_it(target: Target) -> None:
    for _ in range(20):
        with urlopen(f"http://127.0.0.1:{target.server.metrics_port}/metrics", timeout=PATIENCE) as response:
            assert response.status == 200
    threads = target.threads
    for _ in range(20):
        target.server.metrics()
    assert target.threads <= threads
