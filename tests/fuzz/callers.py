"""What says who calls a server, what asks it for metrics, and what its operator writes."""

import base64
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from random import Random

import trustme
from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, make_wsgi_app

from dbw_controller.core.errors import JobError
from dbw_controller.core.policies import POLICIES, create_policy, policy_fields
from dbw_runtime import metrics
from dbw_runtime.callers import read_callers
from dbw_runtime.certificates import MAX_LENGTH, PREFIXES, names_in
from dbw_runtime.configuration import WrongValueError
from dbw_runtime.parameters import numbers_by_key, split_parameters
from dbw_worker.delays import parse_delay
from tests.certificates import DNS, EMAIL, URI, issue
from tests.fuzz.target import Mutate, Target


@cache
def _file() -> Path:
    return Path(tempfile.mkdtemp(prefix="dbw-fuzz-")) / "callers"


def run_callers(data: bytes) -> None:
    """Read a file of tokens, or of names in certificates."""
    _file().write_bytes(data)
    for proof, prefixes in (("token", ("",)), ("name", PREFIXES)):
        with suppress(ValueError):
            for key, caller in read_callers(_file(), proof, prefixes).items():
                assert key.startswith(tuple(prefixes))
                assert caller.identity


def caller_seeds() -> Iterator[bytes]:
    """Files with all that they may have."""
    yield b"# who  token\nalice  s3cret#1 admin # an operator\n\nbob\tother\r\n"
    yield "vision DNS:ps-1.vision\nöps email:ops@example.org admin\u2028x URI:a IP:::1".encode()


def run_certificate(data: bytes) -> None:
    """Find the names in a certificate."""
    names = names_in(data)
    assert all(name.startswith(PREFIXES) and name.isprintable() and len(name) <= MAX_LENGTH for name in names)


@cache
def certificate_seeds() -> tuple[bytes, ...]:
    """Certificates with names of all types, and without any."""
    authority = trustme.CA()
    names = [DNS("ps-1.vision"), URI("spiffe://example.org/ps"), EMAIL("ops@example.org"), DNS("localhost")]
    others = [x509.IPAddress(ip_address("::1")), x509.RegisteredID(x509.ObjectIdentifier("1.2.3")), DNS("*.a")]
    return issue(authority, names).cert, issue(authority, others).cert, issue(authority, []).cert


def mutate_certificate(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change a certificate inside of its armour."""
    found = re.search(rb"-----BEGIN CERTIFICATE-----\s(.*?)-----END CERTIFICATE-----", data, re.DOTALL)
    if found is None or random.random() < 0.05:
        return mutate(data)
    try:
        der = bytearray(base64.b64decode(b"".join(found[1].split())))
    except ValueError:
        return random.choice(certificate_seeds())
    # What stands in the names, and their lengths and types, is most likely to be misread.
    if random.random() < 0.6 and (begin := der.find(b"\x55\x1d\x11")) >= 0:
        for _ in range(random.randint(1, 3)):
            der[random.randrange(begin, min(begin + 100, len(der)))] = random.choice((0, 10, 0x80, 0x84, 0xFF, 0x87))
    else:
        der = bytearray(mutate(bytes(der)))
    armoured = base64.encodebytes(bytes(der))
    return b"-----BEGIN CERTIFICATE-----\n" + armoured + b"-----END CERTIFICATE-----\n"


@cache
def _application() -> Callable[..., list[bytes]]:
    registry = CollectorRegistry()
    Counter("requests", "Some", ["job"], registry=registry).labels("resnet").inc()
    application: Callable[..., list[bytes]] = metrics._with_health(make_wsgi_app(registry), lambda: None)
    return application


def run_head(data: bytes) -> None:
    """Answer a request for metrics, of which this is the head but for its end."""
    if metrics.HEAD_ENDS in data:
        return
    try:
        environment = metrics._environment((data + metrics.HEAD_ENDS).decode("latin-1"))
    except ValueError:
        return
    status: list[object] = []
    body = b"".join(_application()(environment, lambda *arguments: status.extend(arguments)))
    code, headers = status
    metrics._response(str(code), headers, body)  # type: ignore[arg-type]


def head_seeds() -> Iterator[bytes]:
    """Requests of Prometheus and of probes."""
    accept = b"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.3,*/*;q=0.1"
    yield b"GET /metrics?name[]=requests_total HTTP/1.1\r\nHost: x\r\nAccept: " + accept + b"\r\nAccept-Encoding: gzip"
    yield b"GET /healthz HTTP/1.0"
    yield b"OPTIONS /favicon.ico?a=%ff&&=; HTTP/1.1\r\nAccept: text/plain;version=1.0.0;q=x"


def run_option(data: bytes) -> None:
    """Read the options that have a language of their own."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    with suppress(WrongValueError):
        metrics.split_address("listen", text)
    name, parameters = split_parameters(text)
    if name in POLICIES:
        with suppress(JobError, ValueError):
            create_policy(name, numbers_by_key(parameters, policy_fields(name)))
    if not text.lower().startswith("trace"):  # which names a file
        with suppress(WrongValueError, ValueError):
            parse_delay(text)


def option_seeds() -> Iterator[bytes]:
    """Values from the documentation."""
    yield from (b"127.0.0.1:50051", b"[::1]:0", b"static:8", b"dbw:loss_increase_factor=1.05", b"adasync:initial_k=2")
    yield from (b"uniform:0.1,0.5+factor:4,workers=0-3+7", b"exponential:0.2", b"pareto:2,0.1", b"factors:1,2,3")


TARGETS = {
    "token and identity files": Target(run_callers, caller_seeds, short_runs=1000),
    "certificates": Target(run_certificate, certificate_seeds, mutate_certificate),
    "HTTP heads": Target(run_head, head_seeds, short_runs=1000),
    "options": Target(run_option, option_seeds),
}
