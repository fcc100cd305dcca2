"""How an rpc fails: a status, a text for people, and details for programs (google.rpc.*)."""

from collections.abc import Mapping, Sequence

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

DOMAIN = "dbw.v1"
# Texts and details travel in HTTP/2 trailers, of which peers take 8 KiB; each byte of a text may take three there.
LONGEST_TEXT = 1000


class StatusError(Exception):
    """What an rpc ends with. `reason` is a name of dbw.v1.ErrorReason, without its prefix."""

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        text: str,
        details: Sequence[Message] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(text)
        self.code, self.reason, self.text = code, reason, _short(text)
        self.details, self.metadata = details, metadata or {}

    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        """The details, as they go over the wire."""
        status = status_pb2.Status(code=code_pb2.Code.Value(self.code.name), message=self.text)
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata)
        for detail in (info, *self.details):
            status.details.add().Pack(detail)
        return (("grpc-status-details-bin", status.SerializeToString()),)


def _short(text: str) -> str:
    return text.encode()[:LONGEST_TEXT].decode(errors="ignore")


def describe(error: Exception) -> str:
    """What an error of an rpc says, in one line."""
    if isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


def reason_of(error: Exception) -> str | None:
    """Why an rpc failed, as a name of dbw.v1.ErrorReason without its prefix, if the server said so."""
    try:
        status = rpc_status.from_call(error)  # type: ignore[arg-type] # errors of rpcs are calls as well
    except (AttributeError, DecodeError, ValueError):
        return None
    info = error_details_pb2.ErrorInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(info) and info.domain == DOMAIN:
            return str(info.reason)
    return None


def retry_info(seconds: float) -> error_details_pb2.RetryInfo:
    """Says when to try again."""
    info = error_details_pb2.RetryInfo()
    info.retry_delay.FromNanoseconds(round(seconds * 1e9))
    return info


def not_ready(text: str) -> StatusError:
    """The server is starting or stopping."""
    return StatusError(grpc.StatusCode.UNAVAILABLE, "NOT_READY", text, [retry_info(1.0)])


def limit_reached(subject: str, text: str, retry_seconds: float) -> StatusError:
    """A limit of the server was reached."""
    violation = error_details_pb2.QuotaFailure.Violation(subject=subject, description=_short(text))
    details = [error_details_pb2.QuotaFailure(violations=[violation]), retry_info(retry_seconds)]
    return StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED", text, details)


def invalid_value(field: str, text: str) -> StatusError:
    """A field of the request has a value that is not allowed."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=_short(text))
    bad_request = error_details_pb2.BadRequest(field_violations=[violation])
    return StatusError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE", text, [bad_request])
