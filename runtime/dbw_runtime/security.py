"""Who may call a server, and over which transport."""

import hashlib
import ipaddress
import re
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from dbw_runtime.configuration import UsageError
from dbw_runtime.failure import StatusError
from dbw_runtime.files import ReloadedFiles


def is_local(address: str) -> bool:
    """Whether only programs on this machine can reach an address."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_protection(address: str, encrypted: bool, insecure: bool) -> None:
    """Refuse to serve other machines without encryption, unless `insecure` allows it."""
    if not (is_local(address) or encrypted or insecure):
        advice = "give --tls-cert and --tls-key, or --insecure if the network is safe"
        raise UsageError(f"other machines can reach {address}: {advice}")


def server_credentials(cert: Path | None, key: Path | None, client_ca: Path | None) -> grpc.ServerCredentials | None:
    """TLS from these files, or None if there are none; handshakes use the files as they are at that time.

    With `client_ca`, clients must have a certificate of that authority.
    """
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise UsageError("TLS needs both --tls-cert and --tls-key")
    paths = [cert, key] if client_ca is None else [cert, key, client_ca]
    try:
        files = ReloadedFiles(paths, _certificates)
    except (OSError, ValueError) as error:
        raise UsageError(f"the TLS files cannot be used: {error}") from error

    def renewed() -> Any:  # noqa: ANN401 (the type has no public name)
        configuration, changed = files.current()
        return configuration if changed else None

    initial, _ = files.current()
    return grpc.dynamic_ssl_server_credentials(initial, renewed, require_client_authentication=client_ca is not None)


def _certificates(paths: Sequence[Path]) -> Any:  # noqa: ANN401
    cert, key, *authority = paths
    chain, private, *roots = [path.read_bytes() for path in paths]
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # gRPC itself would not say what is wrong
    try:
        trial.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        raise ValueError(f"{cert} and {key} are not a certificate (PEM) and its private key: {error}") from error
    try:
        for path in authority:
            trial.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ValueError(f"{authority[0]} has no certificates (PEM): {error}") from error
    return grpc.ssl_server_certificate_configuration([(private, chain)], *roots)


class Tokens:
    """Bearer tokens from a file: on each line an identity and its token, separated by spaces.

    A word that begins with # begins a comment; tokens may have one inside.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._files = ReloadedFiles([path], _identities)
        except (OSError, ValueError) as error:
            raise UsageError(f"the token file cannot be used: {error}") from error

    def identity(self, authorization: str) -> str | None:
        """Whose token this is, if anybody's."""
        scheme, _, token = authorization.partition(" ")
        identities, _ = self._files.current()
        return identities.get(_digest(token.strip())) if scheme.lower() == "bearer" else None


def _identities(paths: Sequence[Path]) -> Mapping[bytes, str]:
    """Identities by the digests of their tokens: looking these up tells an attacker nothing by the time it takes."""
    found: dict[bytes, str] = {}
    for number, line in enumerate(paths[0].read_text().splitlines(), 1):
        words = re.split(r"(?:^|\s)#", line)[0].split()
        if words and len(words) != 2:
            raise ValueError(f"line {number} of {paths[0]} must be an identity and its token, separated by spaces")
        if words and _digest(words[1]) in found:
            raise ValueError(f"line {number} of {paths[0]} has a token that an earlier line has as well")
        if words:
            found[_digest(words[1])] = words[0]
    return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Authenticator:
    """Finds the identity of a caller: by token where there are tokens, else by certificate, else it is empty."""

    def __init__(self, tokens: Tokens | None, certificates: bool) -> None:
        self._tokens, self._certificates = tokens, certificates

    def identity(self, context: Any) -> str:  # noqa: ANN401 (grpc.aio.ServicerContext lacks peer_identities in its types)
        """The caller's identity; refuses one that has none."""
        if self._tokens is not None:
            sent = dict(context.invocation_metadata() or ()).get("authorization", "")
            identity = self._tokens.identity(sent)
            if identity is None:
                problem = "the token is not known" if sent else "there is no token"
                advice = "send metadata `authorization: Bearer TOKEN` with a token of the server"
                raise _unauthenticated(f"{problem}; {advice}")
            return identity
        if self._certificates:
            identities = context.peer_identities()
            if not identities:
                raise _unauthenticated("the certificate names nobody; use one with a subject alternative name")
            return str(identities[0].decode())
        return ""


NOBODY = Authenticator(None, certificates=False)  # lets everybody in, without an identity


def _unauthenticated(text: str) -> StatusError:
    return StatusError(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", text)
