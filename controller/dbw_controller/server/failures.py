"""What each of the controller's own errors means to a caller: the one table of status codes."""

from collections.abc import Callable

import grpc

from dbw_controller.core import errors
from dbw_controller.core.errors import InvalidValueError, JobError, LimitReachedError, StaleIterationError
from dbw_runtime.failure import StatusError, invalid_value, limit_reached

LIMIT_RETRY_SECONDS = 30.0


def _as(code: grpc.StatusCode, reason: str) -> Callable[[JobError], StatusError]:
    return lambda error: StatusError(code, reason, str(error))


def _invalid_value(error: InvalidValueError) -> StatusError:
    return invalid_value(error.field, str(error))


def _stale_iteration(error: StaleIterationError) -> StatusError:
    code, metadata = grpc.StatusCode.FAILED_PRECONDITION, {"iteration": str(error.expected)}
    return StatusError(code, "STALE_ITERATION", str(error), metadata=metadata)


def _limit_reached(error: LimitReachedError) -> StatusError:
    return limit_reached(error.limit, str(error), LIMIT_RETRY_SECONDS)


TABLE: dict[type[JobError], Callable[..., StatusError]] = {
    errors.InvalidValueError: _invalid_value,
    errors.StaleIterationError: _stale_iteration,
    errors.LimitReachedError: _limit_reached,
    errors.JobNotFoundError: _as(grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND"),
    errors.JobDiffersError: _as(grpc.StatusCode.ALREADY_EXISTS, "JOB_DIFFERS"),
    errors.DecisionNotFoundError: _as(grpc.StatusCode.NOT_FOUND, "DECISION_NOT_FOUND"),
    errors.StateFormatUnknownError: _as(grpc.StatusCode.FAILED_PRECONDITION, "STATE_FORMAT_UNKNOWN"),
    errors.StateDamagedError: _as(grpc.StatusCode.DATA_LOSS, "STATE_DAMAGED"),
    errors.NotOwnerError: _as(grpc.StatusCode.PERMISSION_DENIED, "NOT_OWNER"),
    errors.SessionNotFoundError: _as(grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND"),
    errors.SessionReplacedError: _as(grpc.StatusCode.ABORTED, "SESSION_REPLACED"),
    errors.NotSupportedError: _as(grpc.StatusCode.FAILED_PRECONDITION, "NOT_SUPPORTED"),
}


def failure(error: Exception) -> StatusError | None:
    """How an rpc fails that raised this; None if that is a bug."""
    translate = TABLE.get(type(error))  # type: ignore[arg-type] # other types are not in it
    return None if translate is None else translate(error)
