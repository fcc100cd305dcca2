"""What both clients have in common: where the controller is, and how patient they are with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from google.protobuf.message import DecodeError

from dbw.v1.controller_pb2 import ExportJobStateResponse, ImportJobStateRequest
from dbw_controller.client.conversation import Fallback
from dbw_controller.contract import PIECE_BYTES
from dbw_runtime.backoff import backoff
from dbw_runtime.channel import Connection

# Attempts to attach are this far apart, and wait this long for an answer. Nobody waits for them to succeed.
FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0
ATTACH_SECONDS = 10.0


@dataclass(frozen=True)
class ClientSettings:
    """How to reach a controller, and what to do without it."""

    target: str  # HOST:PORT
    deadline: float = 1.0  # seconds to wait for a decision, at most
    fallback: Fallback = "last"  # k without a decision: the last one that was decided, or "all" workers
    tls: bool = False
    tls_ca: Path | str | None = None
    tls_cert: Path | str | None = None
    tls_key: Path | str | None = None
    token_file: Path | str | None = None

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise ValueError(f"deadline is {self.deadline!r}; it must be more than 0 seconds")
        self.connection()  # refuses what makes no sense

    def connection(self) -> Connection:
        """How to connect."""
        paths = (self.tls_ca, self.tls_cert, self.tls_key, self.token_file)
        return Connection(self.target, self.tls, *(None if path is None else Path(path) for path in paths))


def delays() -> Iterator[float]:
    """Seconds to wait before each attempt, of which the first comes at once."""
    return chain([0.0], backoff(FIRST_DELAY, LONGEST_DELAY))


def join_state(pieces: Sequence[ExportJobStateResponse]) -> bytes:
    """An exported state as one sequence of bytes, which a checkpoint can keep."""
    if not pieces:
        raise ConnectionError("the controller sent nothing")
    data = b"".join(piece.data for piece in pieces)
    return ExportJobStateResponse(header=pieces[0].header, data=data).SerializeToString()


def whole_state(state: bytes) -> ExportJobStateResponse:
    """An exported state; refuses other bytes."""
    try:
        return ExportJobStateResponse.FromString(state)
    except DecodeError as error:
        raise OSError(f"this is no exported state: {error}") from error


def split_state(state: bytes, job: str, session: str) -> Iterator[ImportJobStateRequest]:
    """The requests that import a state."""
    whole = whole_state(state)
    requests = [
        ImportJobStateRequest(data=whole.data[start : start + PIECE_BYTES])
        for start in range(0, max(len(whole.data), 1), PIECE_BYTES)
    ]
    requests[0].MergeFrom(ImportJobStateRequest(job=job, session=session, header=whole.header))
    return iter(requests)
