"""Which addresses, certificates and tokens a server accepts, without a server."""

import os
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

from dbw_runtime.configuration import UsageError
from dbw_runtime.failure import StatusError
from dbw_runtime.security import Authenticator, Tokens, require_protection, server_credentials


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
        (b"alice has-spaces s3cret\n", "line 1 of .*tokens must be an identity and its token, separated by spaces"),
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
    assert Tokens(tokens).identity(authorization) == identity


def test_tokens_are_those_that_the_file_has_now(tokens: Path) -> None:
    known = Tokens(tokens)
    tokens.write_text("carol carol-s3cret\n")
    assert known.identity("Bearer carol-s3cret") == "carol"
    assert known.identity("Bearer bob-s3cret") is None


def test_a_file_that_makes_no_sense_leaves_the_tokens_before_in_use_and_is_logged_once(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = Tokens(tokens)
    tokens.write_text("bob has too many words\n")
    for _ in range(3):
        assert known.identity("Bearer bob-s3cret") == "bob"
    assert len(caplog.messages) == 1
    assert "s3cret" not in caplog.text
    tokens.write_text("bob another-s3cret\n")
    os.utime(tokens, ns=(1, 1))  # whatever the clock of the file system is
    assert known.identity("Bearer bob-s3cret") is None


def caller(authorization: str | None = None, *certified: bytes) -> SimpleNamespace:
    """A call, as gRPC describes it."""
    metadata = None if authorization is None else (("authorization", authorization),)
    return SimpleNamespace(invocation_metadata=lambda: metadata, peer_identities=lambda: certified or None)


def test_who_calls_is_known_by_token_else_by_certificate_else_not_at_all(tokens: Path) -> None:
    both = caller("Bearer bob-s3cret", b"carol@example.org", b"other")
    assert Authenticator(Tokens(tokens), certificates=True).identity(both) == "bob"
    assert Authenticator(None, certificates=True).identity(both) == "carol@example.org"
    assert Authenticator(None, certificates=False).identity(both) == ""


@pytest.mark.parametrize(
    ("authorization", "problem"), [(None, "there is no token"), ("Bearer guessed", "the token is not known")]
)
def test_a_caller_without_a_token_of_the_file_is_refused(tokens: Path, authorization: str | None, problem: str) -> None:
    with pytest.raises(StatusError, match=problem) as caught:
        Authenticator(Tokens(tokens), certificates=True).identity(caller(authorization, b"carol@example.org"))
    assert caught.value.reason == "UNAUTHENTICATED"


def test_a_caller_whose_certificate_has_no_name_is_refused() -> None:
    with pytest.raises(StatusError, match="the certificate names nobody") as caught:
        Authenticator(None, certificates=True).identity(caller())
    assert caught.value.reason == "UNAUTHENTICATED"
