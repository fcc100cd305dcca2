import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from dbw_runtime import failure
from dbw_runtime.failure import StatusError, describe, invalid_value, limit_reached, not_ready, reason_of


def failed(error: StatusError, *trailers: tuple[str, bytes]) -> grpc.aio.AioRpcError:
    """How a client sees an rpc that ended with an error."""
    return grpc.aio.AioRpcError(error.code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), error.text)


def details(error: StatusError, kind: type[Message]) -> Message:
    status = status_pb2.Status.FromString(error.trailers()[0][1])
    found = kind()
    assert any(detail.Unpack(found) for detail in status.details)
    return found


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (not_ready("starting"), "NOT_READY"),
        (limit_reached("max_jobs", "too many", 1.5), "LIMIT_REACHED"),
        (invalid_value("report.k", "k is 0"), "INVALID_VALUE"),
    ],
)
def test_a_client_finds_the_reason_and_the_text(error: StatusError, reason: str) -> None:
    assert reason_of(failed(error, *error.trailers())) == reason
    assert describe(failed(error)) == f"{error.code.name}: {error.text}"


def test_a_limit_says_when_to_try_again_and_a_wrong_value_which_field_it_is() -> None:
    limit = limit_reached("max_jobs", "too many", 1.5)
    assert details(limit, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() == 1500  # type: ignore[attr-defined]
    wrong = invalid_value("report.k", "k is 0")
    (violation,) = details(wrong, error_details_pb2.BadRequest).field_violations  # type: ignore[attr-defined]
    assert (violation.field, violation.description) == ("report.k", "k is 0")


def test_a_text_is_cut_so_that_a_peer_takes_it_and_never_inside_a_character() -> None:
    error = invalid_value("name", "é" * 5000)
    assert len(error.text.encode()) <= failure.LONGEST_TEXT
    assert set(error.text) == {"é"}
    assert len(error.trailers()[0][1]) < 4096


@pytest.mark.parametrize(
    "error",
    [
        ValueError("not of an rpc"),
        failed(not_ready("starting")),
        failed(not_ready("starting"), ("grpc-status-details-bin", b"\xff\xff")),
        failed(not_ready("another text than in the details"), *not_ready("starting").trailers()),
    ],
)
def test_an_error_without_usable_details_has_no_reason(error: Exception) -> None:
    assert reason_of(error) is None


def test_the_reason_of_another_domain_is_not_taken_for_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(failure, "DOMAIN", "example.org")
        trailers = not_ready("starting").trailers()
    assert reason_of(failed(not_ready("starting"), *trailers)) is None


def test_an_error_that_says_nothing_is_described_by_its_type() -> None:
    assert describe(TimeoutError()) == "TimeoutError"
