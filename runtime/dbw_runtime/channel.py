"""How programs connect to a server: over TLS or not, with a token or not, and so that idle connections stay up."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from dbw_runtime.configuration import Options, UsageError, option

# Load balancers drop connections that were idle for a minute or more; pings of both sides keep them alive.
PINGS = {
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.max_pings_without_data": 0,
}
OPTIONS = [  # a server that comes back is found within seconds
    *PINGS.items(),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
]


@dataclass(frozen=True)
class Connection:
    """Where a server is, and how to connect to it. Certificates are read by `open`, the token for every call."""

    target: str  # HOST:PORT
    tls: bool = False  # with the system's authorities, unless `tls_ca` says otherwise
    tls_ca: Path | str | None = None
    tls_cert: Path | str | None = None  # the client's own, for mTLS
    tls_key: Path | str | None = None
    token_file: Path | str | None = None  # a file that holds a bearer token and nothing else

    def __post_init__(self) -> None:
        if ":" not in self.target:
            raise ValueError(f"the address is {self.target!r}; it must be HOST:PORT")
        if (self.tls_cert is None) != (self.tls_key is None):  # gRPC would abort the process
            raise ValueError("a certificate and its private key go together: give both, or neither")

    def open(self) -> grpc.Channel:
        """Connect."""
        credentials = self._credentials()
        if credentials is None:
            return grpc.insecure_channel(self.target, OPTIONS)
        return grpc.secure_channel(self.target, credentials, OPTIONS)

    def open_aio(self) -> grpc.aio.Channel:
        """Connect for asyncio."""
        credentials = self._credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(self.target, OPTIONS)
        return grpc.aio.secure_channel(self.target, credentials, OPTIONS)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of a call."""
        if self.token_file is None:
            return ()
        token = Path(self.token_file).read_bytes().decode("ascii", "replace").strip()
        if not token.isprintable() or " " in token or not token.isascii():
            raise OSError(f"{self.token_file} must hold a bearer token and nothing else")
        return (("authorization", f"Bearer {token}"),)

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if not (self.tls or self.tls_ca or self.tls_cert):
            return None
        paths = (self.tls_ca, self.tls_key, self.tls_cert)
        ca, key, cert = (None if path is None else Path(path).read_bytes() for path in paths)
        return grpc.ssl_channel_credentials(ca, key, cert)


@dataclass(frozen=True)
class ConnectionOptions(Options):
    """Options for a connection to a server."""

    tls: bool = option(False, "use TLS, with the system's certificate authorities")
    tls_ca: Path | None = option(None, "use TLS, with these certificate authorities (PEM)")
    tls_cert: Path | None = option(None, "the client's own certificate (PEM), for mTLS")
    tls_key: Path | None = option(None, "its private key (PEM)")
    token_file: Path | None = option(None, "a file with a bearer token")

    def connection(self, target: str) -> Connection:
        """The connection to a server."""
        try:
            return Connection(target, self.tls, self.tls_ca, self.tls_cert, self.tls_key, self.token_file)
        except ValueError as error:
            raise UsageError(str(error)) from error
