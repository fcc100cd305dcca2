from pathlib import Path

import pytest

from dbw_runtime.channel import Connection, ConnectionOptions
from dbw_runtime.configuration import UsageError


def test_an_address_needs_a_port() -> None:
    with pytest.raises(ValueError, match="the address is 'localhost'; it must be HOST:PORT"):
        Connection("localhost")


@pytest.mark.parametrize("own", [{"tls_cert": "cert.pem"}, {"tls_key": "key.pem"}])
def test_a_certificate_and_its_key_go_together(own: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="a certificate and its private key go together"):
        Connection("localhost:1", **own)  # type: ignore[arg-type]


def test_what_makes_no_sense_in_options_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="it must be HOST:PORT"):
        ConnectionOptions().connection("localhost")
    options = ConnectionOptions(tls=True, token_file=Path("tokens"))
    assert options.connection("localhost:1") == Connection("localhost:1", tls=True, token_file=Path("tokens"))


def test_without_a_token_nothing_goes_with_a_call() -> None:
    assert Connection("localhost:1").metadata() == ()


def test_the_token_is_that_of_the_file_at_the_time_of_the_call(tmp_path: Path) -> None:
    connection = Connection("localhost:1", token_file=tmp_path / "token")
    for token in ("first", "second"):
        (tmp_path / "token").write_text(f"{token}\n")
        assert connection.metadata() == (("authorization", f"Bearer {token}"),)


@pytest.mark.parametrize("content", [b"alice s3cret", b"s3cret\nmore", b"s3cr\xc3\xa9t", b"s3cret\x00"])
def test_a_file_that_holds_more_than_a_token_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(OSError, match="must hold a bearer token and nothing else") as caught:
        Connection("localhost:1", token_file=tmp_path / "token").metadata()
    assert "s3c" not in str(caught.value)


def test_certificates_are_read_when_the_connection_is_opened(tmp_path: Path) -> None:
    connection = Connection("localhost:1", tls_ca=tmp_path / "ca.pem")
    with pytest.raises(FileNotFoundError):
        connection.open()
