"""Workers of a parameter server with TLS, mTLS and tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from tests.servers import TINY_WORK, ParameterServer, parameter_server, worker


class Files(NamedTuple):
    """What the server and workers have."""

    folder: Path
    ca: Path
    token: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder, authority = tmp_path_factory.mktemp("security"), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, identity in (("server", "127.0.0.1"), ("worker", "worker@example.org")):
        leaf = authority.issue_cert(identity)
        leaf.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        leaf.private_key_pem.write_to_path(folder / f"{name}.key")
    (folder / "tokens").write_text("workers the-s3cret\n")
    (folder / "token").write_text("the-s3cret\n")
    (folder / "wrong-token").write_text("another-s3cret\n")
    return Files(folder, folder / "ca.pem", folder / "token")


def flags(files: Files, *more: str) -> tuple[str, ...]:
    own = ("--tls-cert", str(files.folder / "server.pem"), "--tls-key", str(files.folder / "server.key"))
    return ("--model", "tests.models:tiny", "--iterations", "20", *own, *more)


@pytest.fixture
def server(files: Files) -> Iterator[ParameterServer]:
    """One that wants tokens."""
    with parameter_server(*flags(files, "--token-file", str(files.folder / "tokens"))) as running:
        yield running


def test_a_worker_with_a_token_trains_over_tls(server: ParameterServer, files: Files) -> None:
    how = ("--tls-ca", str(files.ca), "--token-file", str(files.token))
    with worker(server.target, "one", *TINY_WORK, *how) as one:
        assert [server.wait(), one.wait()] == [0, 0]


def test_a_worker_with_a_certificate_trains_over_mtls(files: Files) -> None:
    own = ("--tls-cert", str(files.folder / "worker.pem"), "--tls-key", str(files.folder / "worker.key"))
    with parameter_server(*flags(files, "--tls-client-ca", str(files.ca))) as server:
        with worker(server.target, "none", *TINY_WORK, "--tls-ca", str(files.ca), "--patience", "1") as none:
            assert none.wait() == 1
        with worker(server.target, "one", *TINY_WORK, "--tls-ca", str(files.ca), *own) as one:
            assert [server.wait(), one.wait()] == [0, 0]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (
            "--tls-ca {0}/ca.pem --token-file {0}/wrong-token --patience 1",
            "did not let this worker in for 1 s: UNAUTHENTICATED: the token is not known",
        ),
        ("--tls-ca {0}/ca.pem --patience 1", "did not let this worker in for 1 s: UNAUTHENTICATED: there is no token"),
        ("--patience 1", "could not be reached for 1 s"),
        ("--tls --token-file {0}/token --patience 1", "could not be reached for 1 s"),
        ("--tls-ca {0}/missing.pem", "No such file"),
    ],
)
def test_a_worker_that_is_not_let_in_ends_and_says_why(
    how: str, text: str, server: ParameterServer, files: Files
) -> None:
    with worker(server.target, "stranger", *TINY_WORK, *how.format(files.folder).split()) as stranger:
        assert stranger.wait() == 1
        assert stranger.other_output[-1].startswith("dbw worker: ")
        assert text in stranger.other_output[-1]
        assert "s3cret" not in str(stranger.logs)
