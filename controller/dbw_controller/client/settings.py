"""What both clients have in common: where the controller is, and how patient they are with it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from google.protobuf.message import DecodeError

from dbw.v1.controller_pb2 import ExportJobStateResponse, ImportJobStateRequest
from dbw.v1.job_pb2 import JobSpec
from dbw_controller.client.conversation import DEFAULT_DEADLINE, DEFAULT_PATIENCE_SHARE, Conversation, Fallback
from dbw_controller.client.successor import SILENT_SECONDS
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
    deadline: float = DEFAULT_DEADLINE  # seconds to wait for a decision, at most
    fallback: Fallback = "last"  # k without a controller: the last one that was decided, or "all" workers
    tls: bool = False
    tls_ca: Path | str | None = None
    tls_cert: Path | str | None = None
    tls_key: Path | str | None = None
    token_file: Path | str | None = None
    # Every iteration but the first waits for this share of the last one's time, at most; see also EVERY_DECISION.
    patience_share: float = DEFAULT_PATIENCE_SHARE
    # A job that another process has taken over is taken back once nobody has used it for this long, in seconds.
    silent_job_seconds: float = SILENT_SECONDS

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise ValueError(f"deadline is {self.deadline!r}; it must be more than 0 seconds")
        if not 0 <= self.patience_share < math.inf:
            raise ValueError(f"patience_share is {self.patience_share!r}; it must be a finite number, at least 0")
        if not 0 < self.silent_job_seconds < math.inf:
            raise ValueError(f"silent_job_seconds is {self.silent_job_seconds!r}; it must be finite and more than 0")
        self.connection()  # refuses what makes no sense

    @property
    def end_seconds(self) -> float:
        """How long the end of a training waits for an answer, at most: without it the job would stay for days."""
        return max(self.deadline, ATTACH_SECONDS)

    def conversation(
        self, name: str, workers: int | Sequence[int], spec: JobSpec | None, iteration: int
    ) -> Conversation:
        """What to say about a job."""
        patience = self.deadline, self.patience_share, self.silent_job_seconds
        return Conversation(name, workers, spec, iteration, self.fallback, *patience)

    def connection(self) -> Connection:
        """How to connect."""
        paths = (self.tls_ca, self.tls_cert, self.tls_key, self.token_file)
        return Connection(self.target, self.tls, *(None if path is None else Path(path) for path in paths))


def delays() -> Iterator[float]:
    """Seconds to wait before each attempt, of which the first comes at once."""
    return chain([0.0], backoff(FIRST_DELAY, LONGEST_DELAY))


def look_delays(silent_job_seconds: float) -> Iterator[float]:
    """Seconds to wait before each look whether the process that has taken the job over still uses it."""
    return backoff(silent_job_seconds / 2, 4 * silent_job_seconds)


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
    """The requests that import a state, unless the job has learnt from as many iterations meanwhile, or more."""
    whole = whole_state(state)
    requests = [
        ImportJobStateRequest(data=whole.data[start : start + PIECE_BYTES])
        for start in range(0, max(len(whole.data), 1), PIECE_BYTES)
    ]
    requests[0].MergeFrom(ImportJobStateRequest(job=job, session=session, header=whole.header, only_if_newer=True))
    return iter(requests)
