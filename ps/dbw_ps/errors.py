"""What may be wrong with what a worker asks for, and what each error means to it: the one table of status codes."""

import grpc

from dbw_runtime.failure import StatusError, invalid_value


class WorkerError(Exception):
    """A worker asked for something that it cannot have; the text says why, and what to do."""

    code: grpc.StatusCode
    reason: str


class InvalidWorkerError(WorkerError):
    """A worker's id is not allowed."""

    def __init__(self, worker_id: str, rule: str) -> None:
        super().__init__(f"worker_id is {worker_id!r}; it must be {rule}")


class SessionNotFoundError(WorkerError):
    """A session is of another process, or of a worker that was given up."""

    code, reason = grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("the session is not known, because the server restarted or gave the worker up; join again")


class SessionReplacedError(WorkerError):
    """A worker has joined again, perhaps in another process."""

    code, reason = grpc.StatusCode.ABORTED, "SESSION_REPLACED"

    def __init__(self, worker_id: str) -> None:
        super().__init__(f"another process has joined as {worker_id!r}; stop, or give each worker an id of its own")


class ModelDiffersError(WorkerError):
    """A worker's model is another one."""

    code, reason = grpc.StatusCode.FAILED_PRECONDITION, "MODEL_DIFFERS"

    def __init__(self, difference: str) -> None:
        super().__init__(f"the worker's model is another one: {difference}; start both with the same model")


class WrongModeError(WorkerError):
    """An rpc belongs to another synchronisation mode."""

    code, reason = grpc.StatusCode.FAILED_PRECONDITION, "NOT_SUPPORTED"


def failure(error: Exception) -> StatusError | None:
    """How an rpc fails that raised this; None if that is a bug."""
    if isinstance(error, InvalidWorkerError):
        return invalid_value("worker_id", str(error))
    return StatusError(error.code, error.reason, str(error)) if isinstance(error, WorkerError) else None
