"""Whether there is an order of a job's operations that explains all answers: linearizability (Wing and Gong 1993).

An operation happens at one moment between its request and its answer. One of unknown outcome happens at some moment
after its request or never; once its client has stopped waiting, a killed controller takes it with it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.history.model import Job, possible, restarted
from tests.history.operations import NOT_SENT, History, Kind, Operation, Watched

MAX_STEPS = 20_000  # after which a history is too hard to judge
READS = (Kind.JOB, Kind.DECISION, Kind.EXPORT, Kind.REPORT)
RESTARTS = (Kind.KILL, Kind.STOP)
LASTING = (Kind.IMPORT, Kind.DELETE)  # on disk before they are answered
AROUND = 30  # operations that are printed with a violation


class Violation(NamedTuple):
    """Something that must not happen."""

    job: str
    text: str

    def __str__(self) -> str:
        return f"{self.job}: {self.text}"


class Change(NamedTuple):
    """What a job was before something changed it, so that a crash may bring it back."""

    before: Job | None
    lasts_from: float  # when the change must be on disk
    counts_from: float  # when a controller must count it as unsaved, or have saved it


class State(NamedTuple):
    """A job, and its past as far as the next crash can bring it back."""

    job: Job | None = None
    past: tuple[Change, ...] = ()


def check(history: History) -> list[Violation]:
    """All violations in a history, at most one a job and one a watcher."""
    found = [violation for job in history.jobs() if (violation := check_job(job, history.of_job(job)))]
    return found + [violation for watched in history.watched if (violation := check_watched(watched, history))]


def check_job(job: str, operations: Sequence[Operation]) -> Violation | None:
    """Why no order of the operations explains their answers, if none does."""
    return Search(job, operations).run()


class Search:
    """A search for an order in which all answers make sense, depth first."""

    def __init__(self, job: str, operations: Sequence[Operation]) -> None:
        sent = [o for o in operations if o.reason != NOT_SENT]
        relevant = [o for o in sent if math.isfinite(o.answered) or o.kind not in READS]
        self._job, self._operations = job, relevant
        self._restarts = [(o, 1 << i) for i, o in enumerate(relevant) if o.kind in RESTARTS]
        # The restarts that have happened to an operation of unknown outcome after which it can no longer happen.
        self._lost_with = [
            sum(bit for restart, bit in self._restarts if math.isinf(o.answered) and restart.invoked > o.ended)
            for o in relevant
        ]
        places = {o.invoked: 1 << i for i, o in enumerate(relevant)}
        self._comes_after = [0 if o.reason else places.get(o.after, 0) for o in relevant]
        self._required = sum(1 << i for i, o in enumerate(relevant) if math.isfinite(o.answered))

    def run(self) -> Violation | None:
        """Search; None if an order was found."""
        seen: set[tuple[int, State]] = set()
        stack = [iter([(0, State())])]
        furthest, steps = 0, 0
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
                continue
            done, _ = node
            if done & self._required == self._required:
                return None
            if node in seen:
                continue
            seen.add(node)
            steps += 1
            if steps > MAX_STEPS:
                return Violation(self._job, f"not judged in {MAX_STEPS} steps; {self._explain(furthest)}")
            if (done & self._required).bit_count() > (furthest & self._required).bit_count():
                furthest = done
            stack.append(self._next(*node))
        return Violation(self._job, self._explain(furthest))

    def _next(self, done: int, state: State) -> Iterator[tuple[int, State]]:
        restart = next((restart for restart, bit in self._restarts if not done & bit), None)
        choices = [(i, list(self._after(state, self._operations[i], restart))) for i in self._candidates(done)]
        for i, outcomes in choices:
            if outcomes == [state] and self._operations[i].kind not in RESTARTS:  # it may as well happen now
                yield done | 1 << i, state
                return
        lost: set[State] = set()  # what operations of unknown outcome make of the state: one of each kind is enough
        for i, outcomes in choices:
            for after in outcomes:
                if math.isfinite(self._operations[i].answered):
                    yield done | 1 << i, after
                elif after not in lost:
                    lost.add(after)
                    yield done | 1 << i, after

    def _candidates(self, done: int) -> list[int]:
        """What may happen next: what was requested before the first answer to come.

        The known come first; of the others, those that a crash takes with it first.
        """
        open_, limit = [], math.inf
        for i, operation in enumerate(self._operations):
            if operation.invoked > limit:
                break
            if done >> i & 1 or done & self._lost_with[i]:
                continue
            limit = min(limit, operation.answered)
            if done & self._comes_after[i] == self._comes_after[i]:
                open_.append(i)
        open_ = [i for i in open_ if self._operations[i].invoked < limit]
        return sorted(open_, key=lambda i: (self._operations[i].answered, self._operations[i].ended))

    def _after(self, state: State, operation: Operation, restart: Operation | None) -> Iterator[State]:
        if operation.kind is Kind.STOP:
            yield State(restarted(state.job))
        elif operation.kind is Kind.KILL:
            for job in (state.job, *(change.before for change in reversed(state.past))):
                yield State(restarted(job))
        else:
            for job in possible(state.job, operation):
                is_same = operation.kind in READS or job == state.job
                yield State(job, state.past if is_same else self._past(state, operation, restart))

    def _past(self, state: State, operation: Operation, restart: Operation | None) -> tuple[Change, ...]:
        """What may not be on disk at the next restart: a killed controller has lost what it had not saved by then."""
        if restart is None or restart.kind is not Kind.KILL:
            return ()
        lasts_from = operation.answered if operation.kind in LASTING else math.inf
        counts_from = operation.answered if operation.kind is Kind.END else math.inf
        past = (*state.past, Change(state.job, lasts_from, counts_from))
        unsaved = restart.unsaved.get(self._job, 0)
        for i in range(len(past) - 1, -1, -1):
            unsaved -= past[i].counts_from < restart.invoked
            if unsaved < 0 or past[i].lasts_from < restart.invoked:
                return past[i + 1 :]
        return past

    def _explain(self, furthest: int) -> str:
        waiting = [(o.answered, i) for i, o in enumerate(self._operations) if not furthest >> i & 1]
        _, culprit = min(waiting)
        around = self._operations[max(culprit - AROUND, 0) : culprit + AROUND // 3]
        lines = [f"{'>>' if o is self._operations[culprit] else '  '} {o}" for o in around]
        return "\n".join(["no order of its operations explains the answer that is marked", *lines])


def check_watched(watched: Watched, history: History) -> Violation | None:
    """A watcher sees every iteration once, in order, or is told how many were left out."""
    for (before, _), (iteration, skipped) in zip(watched.iterations, watched.iterations[1:], strict=False):
        expected = before + 1 + skipped
        is_wrong = iteration < expected or (iteration > expected and _has_ended(expected, watched, history))
        if is_wrong and not _may_move(watched, history):
            return Violation(watched.job, f"a watcher saw iteration {iteration} after {before}, {skipped} skipped")
    return None


def _has_ended(iteration: int, watched: Watched, history: History) -> bool:
    """Whether an iteration was reported meanwhile, rather than left out by the parameter server."""
    reports = (o for o in history.of_job(watched.job) if o.kind is Kind.END and o.iteration == iteration and o.answer)
    return any(watched.begun < o.invoked and o.answered < watched.ended for o in reports)


def _may_move(watched: Watched, history: History) -> bool:
    """Whether the job may have gone to another iteration meanwhile, because a parameter server said so."""
    creations = (o for o in history.of_job(watched.job) if o.kind is Kind.CREATE and o.iteration is not None)
    return any(o.invoked < watched.ended and o.answered > watched.begun for o in creations)
