"""The lifecycle of a gRPC server process."""

import asyncio
import atexit
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from prometheus_client import CollectorRegistry, Counter

from dbw_runtime.channel import PINGS
from dbw_runtime.configuration import UsageError, option
from dbw_runtime.descriptors import max_connections
from dbw_runtime.failure import StatusError
from dbw_runtime.gate import CallLimits, Gate
from dbw_runtime.health import HEALTH, HEALTH_LIMITS, Health
from dbw_runtime.logs import LogOptions
from dbw_runtime.metrics import serve_metrics, split_address
from dbw_runtime.reflection import REFLECTION, REFLECTION_LIMITS, Reflection
from dbw_runtime.rpc import add_service, handlers
from dbw_runtime.security import (
    ANYBODY,
    Authenticator,
    Certificates,
    Tokens,
    require_protection,
    server_credentials,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerOptions(LogOptions):
    """What all servers have in common."""

    listen: str = option("127.0.0.1:0", "the address to serve gRPC on; port 0 takes a free one")
    metrics_listen: str = option("127.0.0.1:0", "the address to serve Prometheus metrics on, at /metrics")
    tls_cert: Path | None = option(None, "the server's certificate chain (PEM); read again when it changes")
    tls_key: Path | None = option(None, "its private key (PEM)")
    tls_client_ca: Path | None = option(None, "authorities (PEM) of which every client must have a certificate (mTLS)")
    identity_file: Path | None = option(None, "a file of identities and the names in their certificates (TYPE:NAME)")
    token_file: Path | None = option(None, "a file of bearer tokens, on each line an identity and its token")
    insecure: bool = option(False, "serve other machines without TLS")
    reflection: bool = option(True, "let clients ask which services there are")
    max_message_bytes: int = option(4 * 2**20, "the largest message to take in")
    max_connections: int = option(4096, "how many connections may be open at once, if the system lets us open as many")
    max_calls: int = option(4096, "how many calls may be open at once, streams included")
    max_identity_calls: int = option(256, "how many of them one identity may have, where clients are authenticated")
    max_identity_rate: float = option(2000.0, "how many requests a second one identity may make; streams have to wait")
    drain_seconds: float = option(10.0, "how long calls may take to finish after SIGTERM")

    def __post_init__(self) -> None:
        """Refuse options that contradict each other or make no sense."""
        self.require_between("max_message_bytes", 1, 2**31 - 1)
        for name in ("max_connections", "max_calls", "max_identity_calls"):
            self.require_between(name, 1, 2**31 - 1)
        self.require_between("max_identity_rate", 0.1, 1e9)
        self.require_between("drain_seconds", 0, 86_400)
        for name in ("listen", "metrics_listen"):
            split_address(name, getattr(self, name))
        require_protection(self.listen, self.tls_cert is not None, self.insecure)
        if self.identity_file is not None and (self.tls_client_ca is None or self.token_file is not None):
            raise UsageError("--identity-file is for certificates: it needs --tls-client-ca, and no --token-file")


class UnsavedError(Exception):
    """A service could not save what must not be lost, because its disk fails or hangs; the text says what."""


class Service(Protocol):
    """What a server serves."""

    descriptor: ServiceDescriptor

    async def warm_up(self) -> None:
        """Get ready; until then all calls are refused."""
        ...

    async def done(self) -> None:
        """Return when there is nothing more to do. Most services never do; what this raises ends the server, too."""
        ...

    async def finish(self) -> None:
        """Save what must not be lost; no call is being served any more. UnsavedError if that cannot be done in time."""
        ...

    def translate(self, error: Exception) -> StatusError | None:
        """What one of the service's own errors means to a caller; None if it is a bug."""
        ...


SETTINGS = {
    **PINGS,
    # Clients of other languages may ping as often as every 5 seconds without being sent away (`too_many_pings`).
    "grpc.http2.min_ping_interval_without_data_ms": 5_000,
    "grpc.so_reuseport": 0,  # a second server on the same port is a mistake
    # What a peer can keep open without being let in. Clients connect again by themselves, and streams are not cut off.
    "grpc.server_handshake_timeout_ms": 10_000,
    "grpc.max_connection_idle_ms": 300_000,
    "grpc.max_connection_age_ms": 3_600_000,
    # Of one connection, which all clients in a process of Python share. Further calls wait in their client, and nobody
    # is told: so there are more than an identity may have open by default.
    "grpc.max_concurrent_streams": 1024,
    # Calls that were not looked at yet. gRPC cancels some of those beyond 1000, whoever made them.
    "grpc.server.max_pending_requests": 16_000,
    "grpc.server.max_pending_requests_hard_limit": 20_000,
}


def run(serving: Coroutine[Any, Any, None]) -> NoReturn:
    """Run what `serving` returns, with the fastest event loop that is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)
    raise AssertionError("the process has ended")


async def serving(
    program: str,
    options: ServerOptions,
    service: Service,
    registry: CollectorRegistry,
    others: Sequence[grpc.GenericRpcHandler] = (),
    close_files: Callable[[], object] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until the service is done, beside other handlers if there are any.

    Then close files, and end the process. Raises OSError if an address is taken, and what the service says is wrong.
    """
    server, gate, health = _make_server(options, service, registry)
    server.add_generic_rpc_handlers(others)
    stopped = asyncio.Event()

    def stop(sign: signal.Signals) -> None:
        log.info("told to stop", extra={"signal": sign.name})
        stopped.set()

    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop, sign)
    port = _bind(server, options)
    metrics = serve_metrics(options.metrics_listen, registry)
    await server.start()
    log.info("listening", extra={"program": program, "grpc_port": port, "metrics_port": metrics.port})
    warming, stopping = asyncio.ensure_future(service.warm_up()), asyncio.ensure_future(stopped.wait())
    await asyncio.wait([warming, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not warming.done():  # a disk may hang; nothing was served yet, so that there is nothing to save
        log.info("stopped")
        _end_process(0)
    warming.result()
    if not stopped.is_set():
        gate.is_open = True
        health.set_serving(True)
        log.info("ready")
    done = asyncio.ensure_future(service.done())
    await asyncio.wait([done, stopping], return_when=asyncio.FIRST_COMPLETED)
    failure = done.exception() if done.done() else None
    done.cancel()

    log.info("draining")
    health.set_serving(False)
    await gate.drain(options.drain_seconds)
    try:
        await service.finish()
    except UnsavedError as error:
        log.error("stopped, but not all is saved: %s", error)
        await server.stop(None)  # a thread that hangs may keep the process, and with it its ports
        metrics.close()
        _end_process(1)
    metrics.close()
    log.info("stopped")
    if failure is None:
        close_files()
        _end_process(0)
    await server.stop(None)
    raise failure


def _make_server(
    options: ServerOptions, service: Service, registry: CollectorRegistry
) -> tuple[grpc.aio.Server, Gate, Health]:
    """A gRPC server for a service, its health, and where that is asked for reflection; and the service's gate."""
    settings = SETTINGS | {
        "grpc.max_receive_message_length": options.max_message_bytes,
        "grpc.max_allowed_incoming_connections": max_connections(options.max_connections),
    }
    server = grpc.aio.server(options=list(settings.items()))
    tokens = None if options.token_file is None else Tokens(options.token_file)
    certificates = None if options.tls_client_ca is None else Certificates(options.identity_file)
    authenticator = Authenticator(tokens, certificates)
    refused = Counter("dbw_refused_calls", "Calls that were refused, by reason", ["reason"], registry=registry)

    def gate_for(authenticator: Authenticator, limits: CallLimits) -> Gate:
        return Gate(authenticator, limits, count_refusal=lambda reason: refused.labels(reason.lower()).inc())

    limits = CallLimits(options.max_calls, options.max_identity_calls, options.max_identity_rate)
    gate = gate_for(authenticator, limits)
    add_service(server, service.descriptor, handlers(service.descriptor, service, gate, service.translate))
    # Each of these has a gate of its own: a server must not look dead to those who watch its health because it is busy.
    health, health_gate = Health([service.descriptor.full_name]), gate_for(ANYBODY, HEALTH_LIMITS)
    add_service(server, HEALTH, handlers(HEALTH, health, health_gate))
    health_gate.is_open = True
    if options.reflection:
        names = [service.descriptor.full_name, HEALTH.full_name, REFLECTION.full_name]
        reflection_gate = gate_for(authenticator, REFLECTION_LIMITS)
        add_service(server, REFLECTION, handlers(REFLECTION, Reflection(names), reflection_gate))
        reflection_gate.is_open = True
    return server, gate, health


def _end_process(code: int) -> NoReturn:
    """End the process while its server still listens, whatever its threads do.

    A gRPC server that is stopped first ends calls that reach it meanwhile with CANCELLED, which nobody repeats. If the
    operating system closes its connections instead, their callers see UNAVAILABLE.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def _bind(server: grpc.aio.Server, options: ServerOptions) -> int:
    credentials = server_credentials(options.tls_cert, options.tls_key, options.tls_client_ca)
    try:
        if credentials is None:
            return server.add_insecure_port(options.listen)
        return server.add_secure_port(options.listen, credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {options.listen}: {error}") from error
