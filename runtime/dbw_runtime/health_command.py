"""`dbw health`: ask a server whether it is ready, as container engines do."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import grpc

from dbw_runtime.channel import Connection
from dbw_runtime.client_command import ADDRESS, ClientOptions, parse_command
from dbw_runtime.configuration import UsageError, option
from dbw_runtime.failure import describe

DESCRIPTION = """Ask a server whether it is ready: a controller or parameter server, or an http:// address that must
answer without an error. Exit code 0 if it is, 1 if it is not or does not answer."""

MAX_REASON_BYTES = 1000


@dataclass(frozen=True)
class HealthOptions(ClientOptions):
    """Where the server is."""

    controller: str = option("127.0.0.1:50051", "the server's address: HOST:PORT, or one that begins with http://")
    timeout: float = option(5.0, "how long the server may take to answer, in seconds")


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask once; returns 0 if the answer is yes."""
    parser, options, _ = parse_command(HealthOptions, "health", DESCRIPTION, arguments, ADDRESS)
    address = options.controller
    try:
        if address.startswith(("http://", "https://")):
            direct = build_opener(ProxyHandler({}))  # not by a proxy, which others may need
            direct.open(address, timeout=options.timeout).close()
            return 0
        status = _ask(options.connection(address), options.timeout)
    except UsageError as error:
        parser.error(str(error))
    except HTTPError as error:  # whose body says what is wrong
        status = f"{error.code}: {error.read(MAX_REASON_BYTES).decode(errors='replace').strip()}"
    except (OSError, grpc.RpcError) as error:
        status = describe(error)
    if status == "SERVING":
        return 0
    print(f"dbw health: {address}: {status}", file=sys.stderr)
    return 1


def _ask(connection: Connection, timeout: float) -> str:
    from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
    from grpc_health.v1.health_pb2_grpc import HealthStub

    with connection.open() as channel:
        stub: Any = HealthStub(channel)  # whose type hints lack what it can do
        answer = stub.Check(HealthCheckRequest(), timeout=timeout, metadata=connection.metadata())
    return HealthCheckResponse.ServingStatus.Name(answer.status)
