"""`dbw health`, which container engines call, against real servers."""

import socket
import subprocess
import sys
from pathlib import Path

import trustme

from tests.servers import PATIENCE, Controller, begun, controller


def health(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dbw_runtime.cli", "health", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment or None)


def test_a_server_that_is_ready_is_healthy_and_so_is_its_metrics_endpoint() -> None:
    with controller() as server:
        grpc, http = health(server.target), health(f"http://127.0.0.1:{server.metrics_port}/metrics")
    assert (grpc.returncode, grpc.stderr, http.returncode, http.stderr) == (0, "", 0, "")


def test_a_server_that_drains_is_not() -> None:
    with begun(Controller("--drain-seconds", "0", DBW_CONTROLLER_COMPILE="0")) as server:
        server.wait_for_log("ready")
        server.stop()
        done = health(server.target)
    assert done.returncode == 1
    assert server.target in done.stderr


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
