"""How jobs, and the controller on their behalf, refuse what they cannot use. What is refused changes nothing."""

from collections.abc import Iterator
from contextlib import contextmanager


class JobError(Exception):
    """Anything that a job refuses; its text says what was wrong, what was expected and what to do."""


class InvalidValueError(JobError):
    """A field has a value that is not allowed."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__(f"{field} is {value!r}; it must be {rule}")
        self.field, self.value, self.rule = field, value, rule


class StaleIterationError(JobError):
    """A summary is of an iteration before the last one that ended."""

    def __init__(self, iteration: int, expected: int) -> None:
        super().__init__(
            f"iteration {iteration} has already ended, {expected} is next; a parameter server that has gone back "
            "creates its job anew, with the iteration that it is about to begin"
        )
        self.iteration, self.expected = iteration, expected


class DecisionNotFoundError(JobError):
    """A decision was never made, or is no longer remembered."""

    def __init__(self, iteration: int, first: int, last: int) -> None:
        super().__init__(f"there is no decision for iteration {iteration}; those of {first} to {last} are remembered")
        self.iteration = iteration


class StateFormatUnknownError(JobError):
    """A state was made by a version that writes another format."""

    def __init__(self, version: object, known: int) -> None:
        super().__init__(f"the state has format {version!r}, and this version reads up to {known}; use a newer one")


class StateDamagedError(JobError):
    """A state is incomplete or makes no sense."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the state is damaged ({problem}); use another copy")


class NotSupportedError(JobError):
    """Something needs a package that is not installed."""


class JobNotFoundError(JobError):
    """There is no job of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no job {name!r} that you may use; a parameter server creates it, with CreateJob")


class JobDiffersError(JobError):
    """A job of this name was created with another specification."""

    def __init__(self, name: str, differences: str) -> None:
        super().__init__(
            f"the job {name!r} exists with another specification ({differences}); use another name, or delete it"
        )


class NotOwnerError(JobError):
    """A job cannot be created, because another identity has one of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the name {name!r} is taken; choose another name for the job")


class SessionNotFoundError(JobError):
    """A session is unknown, most likely because the controller has restarted."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the session of the job {name!r} is unknown; create the job again, then repeat the request")


class SessionReplacedError(JobError):
    """Another process has begun a session with the same job."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another process has created the job {name!r} since; stop, or use another name")


class DiskFailedError(JobError):
    """The controller's disk does not do what a request needs, or not in time. Nothing has changed."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text}; nothing has changed, try again when the disk works")


class LimitReachedError(JobError):
    """The controller takes no more of something."""

    def __init__(self, limit: str, text: str) -> None:
        super().__init__(text)
        self.limit = limit


# What reading a state that makes no sense may raise.
NONSENSE = (InvalidValueError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@contextmanager
def damaged_state() -> Iterator[None]:
    """Say that a state is damaged where reading it fails in whichever way."""
    try:
        yield
    except NONSENSE as error:
        raise StateDamagedError(f"{type(error).__name__}: {error}") from error
