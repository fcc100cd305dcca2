"""The endpoint that Prometheus scrapes, and that says whether a process without a gRPC server is healthy."""

from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from dbw_runtime.configuration import WrongValueError


def split_address(name: str, address: str) -> tuple[str, int]:
    """Host and port of an address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise WrongValueError(name, address, "HOST:PORT")
    return host.strip("[]"), int(port)


def serve_metrics(
    address: str, registry: CollectorRegistry, problem: Callable[[], str | None] = lambda: None
) -> WSGIServer:
    """Serve metrics at an address, and what the process itself takes; raises OSError if the address is taken.

    /healthz answers 503 with the text of `problem` as long as there is one.
    """
    host, port = split_address("metrics_listen", address)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    ProcessCollector(registry=registry)
    server.set_app(_with_health(server.get_app(), problem))
    return server


def _with_health(metrics: Any, problem: Callable[[], str | None]) -> Any:  # noqa: ANN401 (WSGI applications)
    def application(environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:  # noqa: ANN401
        if environment["PATH_INFO"] != "/healthz":
            answer: Iterable[bytes] = metrics(environment, start_response)
            return answer
        text = problem()
        start_response("200 OK" if text is None else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [f"{text or 'healthy'}\n".encode()]

    return application
