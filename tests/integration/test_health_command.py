"""`dbw health`, which container engines call, against real servers."""

import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import trustme
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from tests.programs import dbw
from tests.servers import controller


def health(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return dbw("health", *arguments, **environment).run()


def test_a_server_that_is_ready_is_healthy_and_so_is_its_metrics_endpoint() -> None:
    with controller() as server:
        http = f"http://127.0.0.1:{server.metrics_port}/metrics"
        asked = [health(*flag, address) for address in (server.target, http) for flag in ((), ("--controller",))]
    assert [(done.returncode, done.stderr) for done in asked] == [(0, "")] * 4


def test_a_server_that_is_not_ready_is_not_healthy() -> None:
    server, servicer = grpc.server(ThreadPoolExecutor(1)), HealthServicer()
    servicer.set("", HealthCheckResponse.NOT_SERVING)
    add_HealthServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        done = health(address)
    finally:
        server.stop(None)
    assert (done.returncode, done.stderr) == (1, f"dbw health: {address}: NOT_SERVING\n")


def test_where_nobody_answers_nobody_is_healthy() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        for target in (address, f"http://{address}/metrics"):
            done = health(target)
            assert done.returncode == 1
            assert done.stderr.startswith(f"dbw health: {target}: ")


def test_a_server_with_mutual_tls_is_asked_with_its_own_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    own = authority.issue_cert("localhost")
    own.private_key_pem.write_to_path(tmp_path / "tls.key")
    own.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    ca, cert, key = (str(tmp_path / name) for name in ("ca.crt", "tls.crt", "tls.key"))
    with controller("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca) as server:
        target = f"localhost:{server.port}"
        flags = health(target, "--tls-ca", ca, "--tls-cert", cert, "--tls-key", key)
        variables = health(target, DBW_CLIENT_TLS_CA=ca, DBW_CLIENT_TLS_CERT=cert, DBW_CLIENT_TLS_KEY=key)
        without = health(target, "--tls-ca", ca)
    assert (flags.returncode, variables.returncode) == (0, 0), flags.stderr + variables.stderr
    assert without.returncode == 1


def test_an_address_without_a_port_is_wrong_usage() -> None:
    done = health("controller")
    assert done.returncode == 2
    assert "HOST:PORT" in done.stderr
