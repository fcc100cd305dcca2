"""Which addresses, certificates and tokens a server accepts, without a server."""

import os
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import GeneralName, IPAddress, ObjectIdentifier, RegisteredID

from dbw_runtime.callers import NOBODY, Caller
from dbw_runtime.configuration import UsageError
from dbw_runtime.failure import StatusError
from dbw_runtime.security import Authenticator, Certificates, Tokens, require_protection, server_credentials
from dbw_runtime.server import ServerOptions
from tests.certificates import DNS, EMAIL, URI, issue


class Files(NamedTuple):
    """A certificate and its key, as files."""

    cert: Path
    key: Path


def write(leaf: trustme.LeafCert, folder: Path, name: str) -> Files:
    files = Files(folder / f"{name}.pem", folder / f"{name}.key")
    leaf.cert_chain_pems[0].write_to_path(files.cert)
    leaf.private_key_pem.write_to_path(files.key)
    return files


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def ca(authority: trustme.CA, folder: Path) -> Path:
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return folder / "ca.pem"


@pytest.fixture(scope="module")
def good(authority: trustme.CA, folder: Path) -> Files:
    return write(authority.issue_cert("127.0.0.1"), folder, "good")


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"])
def test_other_machines_are_not_served_in_the_clear_unless_that_is_asked_for(address: str) -> None:
    with pytest.raises(UsageError, match=r"other machines can reach .*--tls-cert.*--insecure"):
        require_protection(address, encrypted=False, insecure=False)
    require_protection(address, encrypted=True, insecure=False)
    require_protection(address, encrypted=False, insecure=True)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "localhost:1"])
def test_this_machine_may_be_served_in_the_clear(address: str) -> None:
    require_protection(address, encrypted=False, insecure=False)


@pytest.mark.parametrize("missing", ["cert", "key", "both"])
def test_tls_needs_a_certificate_and_a_key(good: Files, ca: Path, missing: str) -> None:
    cert, key = (None if missing in (name, "both") else path for name, path in good._asdict().items())
    with pytest.raises(UsageError, match="TLS needs both --tls-cert and --tls-key"):
        server_credentials(cert, key, ca)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory: .*{path}"),
        (b"", "{path}"),
        (b"this is no PEM", "{path}"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n", "{path}"),
    ],
)
@pytest.mark.parametrize("which", ["certificate", "key", "client authority"])
def test_a_tls_file_that_cannot_be_used_is_named(
    tmp_path: Path, good: Files, ca: Path, which: str, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "bad.pem"
    if content is not None:
        path.write_bytes(content)
    files = {"certificate": good.cert, "key": good.key, "client authority": ca, which: path}
    with pytest.raises(UsageError, match=f"the TLS files cannot be used: .*{problem.format(path=path)}"):
        server_credentials(*files.values())


def test_a_key_must_be_the_certificate_s_and_not_encrypted(authority: trustme.CA, folder: Path, good: Files) -> None:
    another = write(authority.issue_cert("127.0.0.1"), folder, "another")
    with pytest.raises(UsageError, match=r"another\.key are not a certificate .* and its private key"):
        server_credentials(good.cert, another.key, None)
    key = load_pem_private_key(good.key.read_bytes(), None)
    encrypted = folder / "encrypted.key"
    encrypted.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"s3cret")))
    with pytest.raises(UsageError, match=r"encrypted\.key are not a certificate .* and its private key"):
        server_credentials(good.cert, encrypted, None)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory: .*tokens"),
        (b"alice alice-s3cret\nbob\n", "line 2 of .*tokens must be an identity and its token, separated by spaces"),
        (b"alice has-spaces s3cret\n", "line 1 of .*tokens has a third word that is not `admin`"),
        (b"alice alice-s3cret admin s3cret\n", "line 1 of .*tokens must be an identity and its token, separated by"),
        (b"alice same-s3cret\n\nbob same-s3cret\n", "line 3 of .*tokens has a token that an earlier line has as well"),
        (b"alice \xff\xfe-s3cret\n", "utf-8"),
    ],
)
def test_a_bad_token_file_is_refused_without_telling_a_token(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=f"the token file cannot be used: .*{problem}") as caught:
        Tokens(path)
    assert "s3cret" not in str(caught.value)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("# who may call\n\nalice  alice-s3cret#1  # with the sign of comments inside\nbob\tbob-s3cret\n")
    return path


@pytest.mark.parametrize(
    ("authorization", "identity"),
    [
        ("Bearer alice-s3cret#1", "alice"),
        ("bearer  bob-s3cret ", "bob"),
        ("Bearer alice-s3cret", None),
        ("Bearer alice", None),
        ("Bearer", None),
        ("Basic bob-s3cret", None),
        ("bob-s3cret", None),
        ("", None),
    ],
)
def test_a_bearer_token_of_the_file_tells_who_calls(tokens: Path, authorization: str, identity: str | None) -> None:
    caller = Tokens(tokens).caller(authorization)
    assert (None if caller is None else caller.identity) == identity


def test_a_role_goes_with_the_token_of_which_an_identity_may_have_several(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(
        "alice old-s3cret\nalice new-s3cret  # while tokens are replaced\nalice boss-s3cret admin # rarely\n"
    )
    known = Tokens(path)
    callers = [known.caller(f"Bearer {token}-s3cret") for token in ("old", "new", "boss")]
    assert callers == [Caller("alice"), Caller("alice"), Caller("alice", is_admin=True)]


def test_tokens_are_those_that_the_file_has_now(tokens: Path) -> None:
    known = Tokens(tokens)
    tokens.write_text("carol carol-s3cret\n")
    assert known.caller("Bearer carol-s3cret") == Caller("carol")
    assert known.caller("Bearer bob-s3cret") is None


def test_a_file_that_makes_no_sense_leaves_the_tokens_before_in_use_and_is_logged_once(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = Tokens(tokens)
    tokens.write_text("bob has too many words\n")
    for _ in range(3):
        assert known.caller("Bearer bob-s3cret") == Caller("bob")
    assert len(caplog.messages) == 1
    assert "s3cret" not in caplog.text
    tokens.write_text("bob another-s3cret\n")
    os.utime(tokens, ns=(1, 1))  # whatever the clock of the file system is
    assert known.caller("Bearer bob-s3cret") is None


def call(authorization: str | None = None, certificate: bytes | None = None) -> SimpleNamespace:
    """A call, as gRPC describes it."""
    metadata = None if authorization is None else (("authorization", authorization),)
    security = {} if certificate is None else {"x509_pem_cert": [certificate]}
    return SimpleNamespace(invocation_metadata=lambda: metadata, auth_context=lambda: security)


def test_who_calls_is_known_by_token_else_by_certificate_else_not_at_all(tokens: Path, authority: trustme.CA) -> None:
    both = call("Bearer bob-s3cret", issue(authority, [DNS("carol")]).cert)
    assert Authenticator(Tokens(tokens), Certificates()).caller(both) == Caller("bob"), "no names of certificates"
    assert Authenticator(None, Certificates()).caller(both).identity == "DNS:carol"
    assert Authenticator(None, None).caller(both) == NOBODY


@pytest.mark.parametrize(
    ("authorization", "problem"), [(None, "there is no token"), ("Bearer guessed", "the token is not known")]
)
def test_a_caller_without_a_token_of_the_file_is_refused(
    tokens: Path, authority: trustme.CA, authorization: str | None, problem: str
) -> None:
    certified = call(authorization, issue(authority, [DNS("carol")]).cert)
    with pytest.raises(StatusError, match=problem) as caught:
        Authenticator(Tokens(tokens), Certificates()).caller(certified)
    assert caught.value.reason == "UNAUTHENTICATED"


ADDRESS, LOOPBACK = IPAddress(ip_address("10.0.0.1")), IPAddress(ip_address("127.0.0.1"))


@pytest.mark.parametrize(
    ("names", "identity"),
    [
        ([DNS("alice")], "DNS:alice"),
        ([EMAIL("alice")], "email:alice"),
        ([URI("alice")], "URI:alice"),
        ([ADDRESS], "IP:10.0.0.1"),
        ([ADDRESS, EMAIL("a@b"), DNS("ps"), URI("spiffe://a/b")], "URI:spiffe://a/b"),
        ([ADDRESS, EMAIL("a@b"), DNS("ps")], "DNS:ps"),
        ([ADDRESS, EMAIL("a@b")], "email:a@b"),
        # Of one type the most specific: other namespaces have a `ps`, too.
        ([DNS("ps.dbw"), DNS("ps"), DNS("ps.dbw.svc"), DNS("localhost")], "DNS:ps.dbw.svc"),
        ([DNS("b"), DNS("a")], "DNS:a"),
        # Every machine has these.
        ([DNS("localhost"), DNS("ps"), LOOPBACK], "DNS:ps"),
        ([DNS("localhost"), ADDRESS], "IP:10.0.0.1"),
        ([LOOPBACK, DNS("localhost")], "DNS:localhost"),
        # Not names.
        ([DNS("alice\0.example.org"), DNS(""), DNS("a" * 2000), EMAIL("a@b")], "email:a@b"),
    ],
)
def test_an_identity_is_a_name_with_its_type_whatever_the_order_of_names(
    authority: trustme.CA, names: list[GeneralName], identity: str
) -> None:
    for order in (names, names[::-1]):
        certificate = issue(authority, order).cert
        assert Authenticator(None, Certificates()).caller(call(None, certificate)).identity == identity


@pytest.mark.parametrize("names", [[], [DNS("alice\0.example.org")], [RegisteredID(ObjectIdentifier("1.2.3"))]])
def test_a_caller_whose_certificate_has_no_alternative_name_is_refused_whatever_its_common_name(
    authority: trustme.CA, names: list[GeneralName]
) -> None:
    for security in (issue(authority, names, common_name="alice").cert, b"garbage", None):
        with pytest.raises(StatusError, match=r"names nobody; use one with a subject alternative name") as caught:
            Authenticator(None, Certificates()).caller(call(None, security))
        assert caught.value.reason == "UNAUTHENTICATED"


def test_an_identity_file_says_whose_names_are_whose_and_is_read_again_when_it_changes(
    tmp_path: Path, authority: trustme.CA
) -> None:
    path = tmp_path / "identities"
    path.write_text("# teams\nvision DNS:ps-1\nvision DNS:ps-2  # the same team\nops email:o@b admin\n")
    known = Certificates(path)
    ps_1, ps_2, operator, other = (
        issue(authority, names).cert
        for names in ([DNS("ps-1")], [DNS("ps-2.dbw"), DNS("ps-2")], [EMAIL("o@b")], [EMAIL("ps-1")])
    )
    assert known.caller(ps_1) == Caller("vision", untyped_names=frozenset({"ps-1"}))
    assert known.caller(ps_2) == Caller("vision", untyped_names=frozenset({"ps-2", "ps-2.dbw"}))
    assert known.caller(operator) == Caller("ops", is_admin=True, untyped_names=frozenset({"o@b"}))
    assert known.caller(other) == Caller("email:ps-1", untyped_names=frozenset({"ps-1"}))
    path.write_text("speech DNS:ps-1\n")
    assert [known.caller(cert) for cert in (ps_1, operator)] == [
        Caller("speech", untyped_names=frozenset({"ps-1"})),
        Caller("email:o@b", untyped_names=frozenset({"o@b"})),
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("vision DNS:ps\nspeech\n", "line 2 of .* must be an identity and its name, separated by spaces"),
        ("vision ps\n", r"line 1 of .* has a name without its type; it must begin with URI:, DNS:, email:, IP:"),
        ("vision DNS:ps owner\n", "line 1 of .* has a third word that is not `admin`: there is no other role"),
        ("vision DNS:ps\nspeech DNS:ps\n", "line 2 of .* has a name that an earlier line has as well"),
    ],
)
def test_a_bad_identity_file_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "identities"
    path.write_text(content)
    with pytest.raises(UsageError, match=f"the identity file cannot be used: {problem}"):
        Certificates(path)


@pytest.mark.parametrize("others", [{}, {"tls_client_ca": Path("ca.pem"), "token_file": Path("tokens")}])
def test_an_identity_file_that_would_not_be_used_is_refused(others: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="it needs --tls-client-ca, and no --token-file"):
        ServerOptions(identity_file=Path("identities"), **others)  # type: ignore[arg-type] # others are paths, too
