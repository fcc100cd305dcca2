"""What clients did and were answered: a history, which the checker judges and which can be written to a file."""

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path

NOT_SENT = "not sent"  # the reason of a request that never left its client


class Kind(Enum):
    """What an operation does, over whichever rpc."""

    CREATE = "CreateJob"
    END = "EndIteration"  # or a summary on the stream
    REPORT = "Report"
    DELETE = "DeleteJob"
    IMPORT = "ImportJobState"
    EXPORT = "ExportJobState"
    JOB = "GetJob"
    DECISION = "GetDecision"
    KILL = "kill -9"  # of the controller, which restarts; it happens to all jobs
    STOP = "SIGTERM"  # likewise


@dataclass
class Answer:
    """What an answer shows of the job; None where it does not say."""

    session: str | None = None
    learnt: int | None = None
    iteration: int | None = None  # which the decision is for
    decision: str | None = None


@dataclass(eq=False)
class Operation:
    """One request and its outcome. Times are numbers of events: only their order matters."""

    kind: Kind
    job: str
    client: str
    session: str | None = None  # that it was sent with
    iteration: int | None = None  # that it names: the one that ended, begins or is asked for
    learnt: int = 0  # of the state that is imported
    only_if_newer: bool = False
    allow_missing: bool = False
    damaged: bool = False
    unsaved: dict[str, int] = field(default_factory=dict)  # iterations of each job, when the controller is killed
    precedes: bool = False  # it is an iteration that another request reports beside its own
    after: int = 0  # when the operation was invoked that comes before this one, if both happen
    rpc: str = ""  # where it is not the kind's name
    invoked: int = 0
    answered: float = math.inf  # inf while nobody knows whether it happened
    ended: float = math.inf  # when its client was answered or stopped waiting
    answer: Answer | None = None
    reason: str | None = None  # of a definite refusal

    @property
    def outcome(self) -> str:
        """For tables."""
        return "ok" if self.answer is not None else self.reason or "unknown"

    def __str__(self) -> str:
        given = {"session": self.session, "iteration": self.iteration, "learnt": self.learnt or None}
        given |= {"only_if_newer": self.only_if_newer or None, "damaged": self.damaged or None}
        told = " ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        shown = {} if self.answer is None else asdict(self.answer)
        answer = " ".join(f"{name}={value}" for name, value in shown.items() if value is not None)
        span = f"{self.invoked:>6}–{self.ended if math.isfinite(self.ended) else '':<6}"
        return f"{span} {self.client:<12} {self.rpc or self.kind.value:<14} {told} → {self.outcome} {answer}"


@dataclass
class Watched:
    """What a watcher saw on one stream."""

    job: str
    begun: int
    ended: float = math.inf
    iterations: list[tuple[int, int]] = field(default_factory=list)  # that ended, and how many were skipped before


class History:
    """All that happened, in order."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.watched: list[Watched] = []
        self.nemesis: Counter[str] = Counter()
        self._now = 0

    def now(self) -> int:
        """The number of the next event."""
        self._now += 1
        return self._now

    def invoke(self, operation: Operation) -> Operation:
        """A request is about to be sent."""
        operation.invoked = self.now()
        self.operations.append(operation)
        return operation

    def answered(self, operation: Operation, answer: Answer) -> None:
        """It was answered."""
        operation.answer, operation.answered = answer, self.now()
        operation.ended = operation.answered

    def refused(self, operation: Operation, reason: str) -> None:
        """It was refused, so that it must have changed nothing."""
        operation.reason, operation.answered = reason, self.now()
        operation.ended = operation.answered

    def gave_up(self, operation: Operation) -> None:
        """Its client does not know what became of it."""
        operation.ended = self.now()

    def watch(self, job: str) -> Watched:
        """A watcher's stream begins."""
        self.watched.append(Watched(job, self.now()))
        return self.watched[-1]

    def of_job(self, job: str) -> list[Operation]:
        """The operations on a job, and those that happen to all."""
        return [operation for operation in self.operations if operation.job in (job, "")]

    def jobs(self) -> list[str]:
        """All jobs."""
        return sorted({operation.job for operation in self.operations} - {""})

    def write(self, path: Path) -> None:
        """Write all operations, one a line."""
        path.write_text("".join(json.dumps(asdict(o), default=str) + "\n" for o in self.operations))
