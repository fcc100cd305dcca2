"""`dbw health`: ask a server whether it is ready, as container engines do."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any
from urllib.request import ProxyHandler, build_opener

import grpc

from dbw_runtime.channel import Connection, ConnectionOptions
from dbw_runtime.configuration import UsageError, parse
from dbw_runtime.failure import describe

SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask once; returns 0 if the answer is yes."""
    parser = ArgumentParser(
        prog="dbw health",
        usage="%(prog)s ADDRESS [OPTIONS]",
        description="Ask a server whether it is ready: exit code 0 if it is, 1 if it is not or does not answer.",
        allow_abbrev=False,
    )
    text = "HOST:PORT of a controller or parameter server, or an http:// address that must answer"
    parser.add_argument("address", metavar="ADDRESS", help=text)
    options, given = parse(parser, ConnectionOptions, "client", arguments)
    address: str = given["address"]
    try:
        if address.startswith(("http://", "https://")):
            direct = build_opener(ProxyHandler({}))  # not by a proxy, which others may need
            direct.open(address, timeout=SECONDS).close()
            return 0
        return _ask(options.connection(address))
    except UsageError as error:
        parser.error(str(error))
    except (OSError, grpc.RpcError) as error:
        print(f"dbw health: {address}: {describe(error)}", file=sys.stderr)
        return 1


def _ask(connection: Connection) -> int:
    from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
    from grpc_health.v1.health_pb2_grpc import HealthStub

    with connection.open() as channel:
        stub: Any = HealthStub(channel)  # whose type hints lack what it can do
        answer = stub.Check(HealthCheckRequest(), timeout=SECONDS, metadata=connection.metadata())
    if answer.status == HealthCheckResponse.SERVING:
        return 0
    status = HealthCheckResponse.ServingStatus.Name(answer.status)
    print(f"dbw health: {connection.target}: {status}", file=sys.stderr)
    return 1
