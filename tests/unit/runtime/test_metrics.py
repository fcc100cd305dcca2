"""What the endpoint for metrics answers, whatever is asked."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from prometheus_client import CollectorRegistry

from dbw_runtime.metrics import MetricsServer, serve_metrics


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with closing(serve_metrics("127.0.0.1:0", CollectorRegistry())) as serving:
        yield serving


def answer(server: MetricsServer, head: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + b"\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.mark.parametrize(
    "accept", [b"application/openmetrics-text;version=1.0.x", b"application/openmetrics-text;version=v1", b";;=;,"]
)
def test_a_header_that_makes_no_sense_is_answered(server: MetricsServer, accept: bytes) -> None:
    status = answer(server, b"GET /metrics HTTP/1.1\r\nAccept: " + accept).split(b"\r\n")[0]
    assert status in (b"HTTP/1.1 200 OK", b"HTTP/1.1 400 Bad Request")
    assert b"process_resident_memory_bytes" in answer(server, b"GET /metrics HTTP/1.1")
