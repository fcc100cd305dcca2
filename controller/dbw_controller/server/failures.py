"""What each of the controller's own errors means to a caller: the one table of status codes."""

from grpc import StatusCode

from dbw_controller.core import errors
from dbw_runtime.failure import StatusError, invalid_value, limit_reached, retry_info

LIMIT_RETRY_SECONDS, DISK_RETRY_SECONDS = 30.0, 10.0
STATUSES = {
    errors.JobNotFoundError: (StatusCode.NOT_FOUND, "JOB_NOT_FOUND"),
    errors.JobDiffersError: (StatusCode.ALREADY_EXISTS, "JOB_DIFFERS"),
    errors.DecisionNotFoundError: (StatusCode.NOT_FOUND, "DECISION_NOT_FOUND"),
    errors.StaleIterationError: (StatusCode.FAILED_PRECONDITION, "STALE_ITERATION"),
    errors.StateFormatUnknownError: (StatusCode.FAILED_PRECONDITION, "STATE_FORMAT_UNKNOWN"),
    errors.StateDamagedError: (StatusCode.DATA_LOSS, "STATE_DAMAGED"),
    errors.NotOwnerError: (StatusCode.PERMISSION_DENIED, "NOT_OWNER"),
    errors.SessionNotFoundError: (StatusCode.NOT_FOUND, "SESSION_NOT_FOUND"),
    errors.SessionReplacedError: (StatusCode.ABORTED, "SESSION_REPLACED"),
    errors.NotSupportedError: (StatusCode.FAILED_PRECONDITION, "NOT_SUPPORTED"),
}


def failure(error: Exception) -> StatusError | None:
    """How an rpc fails that raised this; None if that is a bug."""
    if isinstance(error, errors.InvalidValueError):
        return invalid_value(error.field, str(error))
    if isinstance(error, errors.LimitReachedError):
        return limit_reached(error.limit, str(error), LIMIT_RETRY_SECONDS)
    if isinstance(error, MemoryError):
        return limit_reached("memory", "the controller has not enough memory for this", LIMIT_RETRY_SECONDS)
    if isinstance(error, errors.DiskFailedError):
        return StatusError(StatusCode.UNAVAILABLE, "DISK_FAILED", str(error), [retry_info(DISK_RETRY_SECONDS)])
    if type(error) not in STATUSES:
        return None
    metadata = {"iteration": str(error.expected)} if isinstance(error, errors.StaleIterationError) else None
    return StatusError(*STATUSES[type(error)], str(error), metadata=metadata)
