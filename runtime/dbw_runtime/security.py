"""Who may call a server, and over which transport."""

import hashlib
import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc

from dbw_runtime.callers import NOBODY, Caller, read_callers
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
    """Bearer tokens from a file: on each line an identity and its token, and `admin` for an administrator."""

    def __init__(self, path: Path) -> None:
        try:
            self._files = ReloadedFiles([path], _callers_by_digest)
        except (OSError, ValueError) as error:
            raise UsageError(f"the token file cannot be used: {error}") from error

    def caller(self, authorization: str) -> Caller | None:
        """Whose token this is, if anybody's."""
        scheme, _, token = authorization.partition(" ")
        callers, _ = self._files.current()
        return callers.get(_digest(token.strip())) if scheme.lower() == "bearer" else None


def _callers_by_digest(paths: Sequence[Path]) -> Mapping[bytes, Caller]:
    """Callers by the digests of their tokens: looking these up tells an attacker nothing by the time it takes."""
    return {_digest(token): caller for token, caller in read_callers(paths[0], "token").items()}


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Certificates:
    """Callers by the names in their certificates.

    A file may say whose names they are: on each line an identity, TYPE:NAME, and `admin` for an administrator.
    """

    def __init__(self, identity_file: Path | None = None) -> None:
        from dbw_runtime.certificates import PREFIXES, names_in  # which needs a package that nothing else does

        def read(paths: Sequence[Path]) -> Mapping[str, Caller]:
            return read_callers(paths[0], "name", PREFIXES) if paths else {}

        try:
            self._files = ReloadedFiles([] if identity_file is None else [identity_file], read)
        except (OSError, ValueError) as error:
            raise UsageError(f"the identity file cannot be used: {error}") from error
        self._callers, _ = self._files.current()
        self._names_in, self._known = names_in, lru_cache(maxsize=1024)(self._find)

    def caller(self, certificate: bytes) -> Caller | None:
        """Whose certificate (PEM) this is; None if it names nobody."""
        callers, has_changed = self._files.current()
        if has_changed:
            self._callers = callers
            self._known.cache_clear()
        return self._known(certificate)

    def _find(self, certificate: bytes) -> Caller | None:
        names = self._names_in(certificate)
        if not names:
            return None
        caller = next((self._callers[name] for name in names if name in self._callers), Caller(names[0]))
        return replace(caller, untyped_names=frozenset(name.partition(":")[2] for name in names))


class Authenticator:
    """Finds out who calls: by token where there are tokens, else by certificate, else it is nobody."""

    def __init__(self, tokens: Tokens | None, certificates: Certificates | None) -> None:
        self._tokens, self._certificates = tokens, certificates

    def caller(self, context: Any) -> Caller:  # noqa: ANN401 (grpc.aio.ServicerContext lacks auth_context in its types)
        """Who calls; refuses a caller that does not prove who it is."""
        if self._tokens is not None:
            sent = dict(context.invocation_metadata() or ()).get("authorization", "")
            caller = self._tokens.caller(sent)
            if caller is None:
                problem = "the token is not known" if sent else "there is no token"
                advice = "send metadata `authorization: Bearer TOKEN` with a token of the server"
                raise _unauthenticated(f"{problem}; {advice}")
            return caller
        if self._certificates is not None:
            [certificate] = context.auth_context().get("x509_pem_cert", [b""])
            caller = self._certificates.caller(certificate)
            if caller is None:
                advice = "use one with a subject alternative name: a URI, DNS name, e-mail or IP address"
                raise _unauthenticated(f"the certificate names nobody; {advice}")
            return caller
        return NOBODY


ANYBODY = Authenticator(None, None)  # lets everybody in, without an identity


def _unauthenticated(text: str) -> StatusError:
    return StatusError(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", text)
