"""A check: one claim of the contract, and what it takes to see whether a controller keeps it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from dbw_controller.cli.conformance.subject import Subject
from dbw_runtime.failure import describe, reason_of

DETAILS = "grpc-status-details-bin"
# The status that goes with each reason of error.proto which can be brought about from outside.
CODES = {
    "INVALID_VALUE": grpc.StatusCode.INVALID_ARGUMENT,
    "JOB_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "JOB_DIFFERS": grpc.StatusCode.ALREADY_EXISTS,
    "DECISION_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "STALE_ITERATION": grpc.StatusCode.FAILED_PRECONDITION,
    "STATE_FORMAT_UNKNOWN": grpc.StatusCode.FAILED_PRECONDITION,
    "STATE_DAMAGED": grpc.StatusCode.DATA_LOSS,
    "SESSION_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "SESSION_REPLACED": grpc.StatusCode.ABORTED,
}


class BrokenClaimError(Exception):
    """The controller does not do what the contract says; the text says what was seen and what was expected."""


class SkippedCheckError(Exception):
    """The check makes no sense with this controller; the text says why."""


@dataclass(frozen=True)
class Check:
    """One claim of the contract."""

    name: str
    claim: str
    run: Callable[[Subject], None]


def check(function: Callable[[Subject], None]) -> Check:
    """Make a check of a function: its name and its docstring are what people see."""
    assert function.__doc__ is not None, "a check has a claim"
    return Check(function.__name__.replace("_", "-"), function.__doc__, function)


def expect(what: str, seen: object, expected: object) -> None:
    """Require that two things are the same."""
    if seen != expected:
        raise BrokenClaimError(f"{what} is {_short(seen)}; expected {_short(expected)}")


def require(condition: object, problem: str) -> None:
    """Require that something holds."""
    if not condition:
        raise BrokenClaimError(problem)


def expect_k(decision: Any, live_workers: int) -> None:  # noqa: ANN401
    """Require a decision that a parameter server with this many workers can follow."""
    expect("live_workers of the decision", decision.live_workers, live_workers)
    require(
        1 <= decision.k <= max(live_workers, 1), f"k is {decision.k}; expected 1 to {live_workers}, the live workers"
    )


@dataclass(frozen=True)
class Refusal:
    """The details of an rpc that failed."""

    metadata: dict[str, str]  # of its ErrorInfo
    fields: list[str]  # that its BadRequest names


def expect_refusal(what: str, reason: str, call: Callable[..., Any], *arguments: object) -> Refusal:
    """Require that a call, or the stream that it returns, fails for this reason."""
    code = CODES[reason]
    expected = f"expected {code.name} with the reason {reason}"
    try:
        answer = call(*arguments)
        if isinstance(answer, grpc.Call):  # a stream fails when it is read
            answer = list(answer)  # type: ignore[call-overload]
    except grpc.RpcError as error:
        require(isinstance(error, grpc.Call) and error.code() is code, f"{what}: {describe(error)}; {expected}")
        require(reason_of(error) == reason, f"{what}: the reason is {reason_of(error)}; {expected}")
        return _details(error)
    raise BrokenClaimError(f"{what} was accepted, with {_short(answer) or 'an empty answer'}; {expected}")


def _details(error: Any) -> Refusal:  # noqa: ANN401
    trailers = dict(error.trailing_metadata() or ())
    try:
        status = status_pb2.Status.FromString(trailers.get(DETAILS, b""))
    except DecodeError as problem:
        raise BrokenClaimError(f"{DETAILS} cannot be read: {problem}") from problem
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        _ = detail.Unpack(info) or detail.Unpack(bad)
    return Refusal(dict(info.metadata), [violation.field for violation in bad.field_violations])


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else f"{text[:200]}…"
