"""What a controller promises of one job, as a small sequential model: which outcomes an operation may have."""

from typing import NamedTuple

from tests.history.operations import Answer, Kind, Operation

REMEMBERED = 64  # decisions that can be asked for again
NOBODY = "nobody's"  # the session of an answer that was lost


class Job(NamedTuple):
    """A job. A decision is None until an answer shows it; then it is always the same."""

    session: str | None  # None after a restart
    replaced: frozenset[str]
    learnt: int
    iteration: int  # which the newest decision is for
    decisions: tuple[tuple[int, str | None], ...]


class Refusal(NamedTuple):
    """An operation changes nothing."""

    reason: str


def possible(job: Job | None, operation: Operation) -> list[Job | None]:
    """What a job may be after an operation with its outcome; nothing if it cannot have this outcome here.

    Operations of unknown outcome are tried where they change something; otherwise they need not have happened.
    """
    after = effect(job, operation)
    if operation.reason is not None:
        # A stream knows only the job that it began with, even if there is another one of its name.
        is_old = after == Refusal("SESSION_NOT_FOUND") and operation.reason == "JOB_NOT_FOUND"
        return [job] if is_old or after == Refusal(operation.reason) else []
    if isinstance(after, Refusal):
        return []
    if operation.answer is None:
        return [] if after == job and not operation.precedes else [after]
    if after is None:
        return [None]
    asked = operation.iteration if operation.kind is Kind.DECISION else None
    seen = _with_answer(after, operation.answer, after.iteration if asked is None else asked)
    return [] if seen is None else [seen]


def effect(job: Job | None, operation: Operation) -> "Job | Refusal | None":
    """What an operation does to a job; None is a job that does not exist."""
    if operation.kind is Kind.CREATE:
        return _created(job, operation)
    if operation.kind is Kind.DELETE and job is None and operation.allow_missing:
        return None
    if job is None:
        return Refusal("JOB_NOT_FOUND")
    if operation.kind is Kind.DELETE and job.session is None:
        return None  # nobody has it since the controller restarted, so that any session of before may be its last one
    if operation.session is not None and operation.session != job.session:
        return Refusal("SESSION_REPLACED" if operation.session in job.replaced else "SESSION_NOT_FOUND")
    match operation.kind:
        case Kind.END:
            iteration = operation.iteration or 0
            return job if operation.precedes and iteration < job.iteration else _ended(job, iteration)
        case Kind.DELETE:
            return None
        case Kind.IMPORT:
            return _imported(job, operation)
        case Kind.DECISION if operation.iteration is not None and operation.iteration not in dict(job.decisions):
            return Refusal("DECISION_NOT_FOUND")
    return job


def restarted(job: Job | None) -> Job | None:
    """A job that was restored from its snapshot."""
    return None if job is None else job._replace(session=None, replaced=frozenset())


def _created(job: Job | None, operation: Operation) -> Job:
    session = operation.answer.session if operation.answer is not None else NOBODY
    begins = operation.iteration
    if job is None:
        return Job(session, frozenset(), 0, begins or 0, ((begins or 0, None),))
    replaced = job.replaced if job.session in (None, NOBODY) else job.replaced | {job.session}
    job = job._replace(session=session, replaced=replaced)
    if begins is None:
        return job
    kept = tuple((iteration, decision) for iteration, decision in job.decisions if iteration < begins)
    return job._replace(iteration=begins, decisions=(*kept, (begins, None))[-REMEMBERED:])


def _ended(job: Job, iteration: int) -> Job | Refusal:
    if iteration < job.iteration - 1:
        return Refusal("STALE_ITERATION")
    if iteration == job.iteration - 1:
        return job  # it was reported before
    decisions = (*job.decisions, (iteration + 1, None))[-REMEMBERED:]
    return job._replace(learnt=job.learnt + 1, iteration=iteration + 1, decisions=decisions)


def _imported(job: Job, operation: Operation) -> Job | Refusal:
    if operation.damaged:
        return Refusal("STATE_DAMAGED")
    if operation.only_if_newer and job.learnt >= operation.learnt:
        return job
    return job._replace(learnt=operation.learnt, decisions=_decided(job, job.iteration, None))


def _with_answer(job: Job, answer: Answer, iteration: int) -> Job | None:
    """The job that an answer shows; None if it is not this one."""
    if answer.learnt is not None and answer.learnt != job.learnt:
        return None
    if answer.decision is None:
        return job
    known = dict(job.decisions)
    if answer.iteration != iteration or iteration not in known or known[iteration] not in (None, answer.decision):
        return None
    return job._replace(decisions=_decided(job, iteration, answer.decision))


def _decided(job: Job, iteration: int, decision: str | None) -> tuple[tuple[int, str | None], ...]:
    return tuple((i, decision if i == iteration else other) for i, other in job.decisions)
