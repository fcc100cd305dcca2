"""The endpoint that Prometheus scrapes."""

from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from dbw_runtime.configuration import WrongValueError


def split_address(name: str, address: str) -> tuple[str, int]:
    """Host and port of an address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise WrongValueError(name, address, "HOST:PORT")
    return host.strip("[]"), int(port)


def serve_metrics(address: str, registry: CollectorRegistry) -> WSGIServer:
    """Serve metrics at an address; raises OSError if it is taken."""
    host, port = split_address("metrics_listen", address)
    try:
        return start_http_server(port, host, registry)[0]
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
