"""The endpoint that Prometheus scrapes."""

from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from dbw_runtime.configuration import WrongValueError


def split_address(name: str, address: str) -> tuple[str, int]:
    """Host and port of an address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise WrongValueError(name, address, "HOST:PORT")
    return host.strip("[]"), int(port)


def serve_metrics(address: str, registry: CollectorRegistry) -> WSGIServer:
    """Serve metrics at an address, and what the process itself takes; raises OSError if the address is taken."""
    host, port = split_address("metrics_listen", address)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    ProcessCollector(registry=registry)
    return server
