"""Which gradients count: a parameter server's iterations, one after the other.

Rounds hold no clock, socket or tensor. The service and the simulator drive the same object: they tell it what happens
and when, in seconds on any clock that does not go back, and who is alive. What differs between the synchronisation
modes is when a worker gets new parameters and what it does with an unfinished gradient; which gradients count is the
same in all of them.
"""

from collections import Counter
from collections.abc import Set
from enum import Enum
from typing import NamedTuple

MAX_ATTEMPTS = 3  # if the gradients of all workers are rejected this often in one iteration, training has failed
# A worker that has lost n gradients in a row on their way, at least this many, is left out for 2ⁿ iterations, so that
# one whose uploads always stall costs the others next to nothing; and for this many at most. Late gradients are not
# received whole and say nothing about uploads; neither does a worker that leaves while it sends nothing.
MAX_LOST_IN_A_ROW, MAX_ITERATIONS_LEFT_OUT = 3, 1024
# Late gradients of iterations that ended longer ago are still late, but nobody asks when they came.
REMEMBERED_ITERATIONS = 256


class Verdict(Enum):
    """What becomes of a gradient; the names are those of the contract."""

    USED = "used"
    LATE = "late"
    DUPLICATE = "this worker's gradient of this version was taken before"
    WRONG_VERSION = "no parameters of this version were published in this session"
    LEFT_OUT = "this worker has lost several gradients in a row on their way, and is left out for some iterations"


class Cause(Enum):
    """Why an iteration ended; the names are those of the contract."""

    K_REACHED = "as many gradients as decided were in"
    NO_MORE_EXPECTED = "no further gradient could come"
    DEADLINE = "the decision's deadline had passed"
    MAX_WAIT = "the longest wait had passed"


class Fate(Enum):
    """What became of a worker's gradient of one iteration."""

    USED = "used"
    LATE = "late"
    REJECTED = "rejected"  # it cannot be used, whenever it comes; the worker goes on with newer parameters
    OUTLIER = "outlier"  # it is much longer than others, and may be right all the same
    LOST = "lost"  # broken off, or the worker is gone; it may come again


REFUSED = (Fate.REJECTED, Fate.OUTLIER)


class End(NamedTuple):
    """An iteration that ended."""

    iteration: int
    k: int  # how many gradients were used
    cause: Cause
    seconds: float  # since its parameters were published
    lost: int  # how many gradients were rejected or lost


class Arrival(NamedTuple):
    """A gradient that came, used or late."""

    iteration: int
    worker: int
    seconds: float  # since the iteration's parameters were published


class Round:
    """One iteration: it ends once, with at least one gradient."""

    def __init__(self, iteration: int, k: int, published: float, give_up: float | None, cause: Cause) -> None:
        self.iteration, self.k, self.published = iteration, k, published
        self.give_up = give_up  # when to stop waiting, and
        self.cause_then = cause
        self.fates: dict[int, Fate] = {}
        self.refused: set[int] = set()  # workers, also those that have joined again since
        self.used = 0
        self.lost = 0
        self.others_may_try_again = False  # an upload has broken off since those that were refused could
        self.attempts = 1  # how often all gradients were rejected, and the one that is under way


class Rounds:
    """The iterations of a training from `first` on. Workers are known by their numbers."""

    def __init__(self, first: int, max_wait: float | None = None) -> None:
        self._first = first
        self._max_wait = max_wait
        self._rounds: dict[int, Round] = {}
        self._current: Round | None = None  # None before the first and between two iterations
        self._next = first
        self._arrivals: list[Arrival] = []
        self._lost_in_a_row: Counter[int] = Counter()  # gradients of each worker, since one came in whole
        self._left_out_until: dict[int, int] = {}  # the iteration in which a worker is waited for again

    def is_blocked(self, live: Set[int]) -> bool:
        """Whether the current iteration cannot end: nothing was used, and no gradient of a live worker can come."""
        its = self._current
        return its is not None and its.used == 0 and bool(live) and live <= its.fates.keys()

    @property
    def outliers(self) -> Set[int]:
        """The workers whose gradients of the current iteration are much longer than others."""
        fates = {} if self._current is None else self._current.fates
        return {worker for worker, fate in fates.items() if fate is Fate.OUTLIER}

    def start_over(self, live: Set[int], believed: Set[int] = frozenset()) -> Set[int]:
        """Which workers are to join again, where an iteration is blocked: all, or none if all fail again and again.

        Outliers that are believed by now will be taken the next time, and what was lost may come through. Meanwhile a
        worker whose gradient was refused may be well again.
        """
        its = self._current
        assert its is not None
        if not believed and all(its.fates[worker] in REFUSED for worker in live):
            its.attempts += 1
            if its.attempts > MAX_ATTEMPTS:
                return set()
        for worker in live:
            self._forget_lost(worker)
        return live

    def to_try_again(self, live: Set[int]) -> Set[int]:
        """Workers that are to join again before an iteration is blocked: refused ones, when an upload has broken off.

        Otherwise one that is well again would wait for as long as others try in vain.
        """
        its = self._current
        if its is None or its.used or not its.others_may_try_again:
            return set()
        its.others_may_try_again = False
        return {worker for worker in live if its.fates.get(worker) in REFUSED}

    def was_refused(self, worker: int) -> bool:
        """Whether a gradient of this worker was rejected, or an outlier, in the current iteration."""
        return self._current is not None and worker in self._current.refused

    @property
    def wake_at(self) -> float | None:
        """When the current iteration may end though nothing happens."""
        return self._current.give_up if self._current is not None and self._current.used else None

    def begin(self, k: int, now: float, deadline_seconds: float | None = None) -> int:
        """Publish the next parameters; returns their version."""
        assert self._current is None, "the iteration before has ended"
        assert k >= 1
        waits = [(self._max_wait, Cause.MAX_WAIT), (deadline_seconds, Cause.DEADLINE)]
        known = [(seconds, cause) for seconds, cause in waits if seconds is not None]
        seconds, cause = min(known, key=lambda wait: wait[0], default=(None, Cause.MAX_WAIT))
        self._current = Round(self._next, k, now, None if seconds is None else now + seconds, cause)
        self._rounds[self._next] = self._current
        self._rounds.pop(self._next - REMEMBERED_ITERATIONS, None)
        self._next += 1
        for worker in self._left_out_until:
            if self._is_left_out(worker):
                self._current.fates[worker] = Fate.LOST
        return self._current.iteration

    def _is_left_out(self, worker: int) -> bool:
        """Whether nobody waits for a worker in the current iteration, because it loses each gradient on its way."""
        return self._left_out_until.get(worker, 0) >= self._next

    def _forget_lost(self, worker: int) -> None:
        self._lost_in_a_row.pop(worker, None)
        self._left_out_until.pop(worker, None)

    def join(self, worker: int) -> None:
        """A worker has joined. It may have been there before: what it was computing is then forgotten."""
        its = self._current
        if its is not None and its.fates.get(worker, Fate.USED) is not Fate.USED and not self._is_left_out(worker):
            del its.fates[worker]  # it gets the parameters again

    def leave(self, worker: int) -> None:
        """A worker is gone."""
        if self._current is not None and worker not in self._current.fates:
            self._note(self._current, worker, Fate.LOST)

    def verdict(self, worker: int, version: int) -> Verdict:
        """What would become of a gradient that arrived now."""
        if not self._first <= version < self._next:
            return Verdict.WRONG_VERSION
        its = self._rounds.get(version)
        if its is None:
            return Verdict.LATE
        if its.fates.get(worker) in (Fate.USED, Fate.LATE):
            return Verdict.DUPLICATE
        if its is not self._current or its.used >= its.k:
            return Verdict.LATE
        return Verdict.LEFT_OUT if self._is_left_out(worker) else Verdict.USED

    def record(self, worker: int, version: int, verdict: Verdict, now: float) -> None:
        """Take note of a gradient that has just arrived, and got this verdict."""
        its = self._rounds.get(version)
        if its is not None and verdict in (Verdict.USED, Verdict.LATE):
            its.fates[worker] = Fate.USED if verdict is Verdict.USED else Fate.LATE
            if verdict is Verdict.USED:  # a late one is not received, or not whole
                its.used += 1
                self._forget_lost(worker)
            self._arrivals.append(Arrival(version, worker, max(now - its.published, 0.0)))

    def complete(self, worker: int, version: int, now: float) -> None:
        """A worker is done with a gradient, and will not send it: it is late, also if it could have been used."""
        verdict = self.verdict(worker, version)
        if verdict is Verdict.LATE:
            self.record(worker, version, verdict, now)
        elif verdict is Verdict.USED:  # it is no arrival: it would count as one of the first k, which all are used
            self._rounds[version].fates[worker] = Fate.LATE

    def fail(self, worker: int, version: int, fate: Fate) -> None:
        """A gradient was rejected, or its upload broke off: it is lost."""
        its = self._rounds.get(version)
        if its is None or its.fates.get(worker) in (Fate.USED, Fate.LATE):
            return
        self._note(its, worker, fate)
        if fate is Fate.LOST:
            its.others_may_try_again = True
            self._count_lost(worker)
        else:  # it came in whole
            self._forget_lost(worker)

    def _note(self, its: Round, worker: int, fate: Fate) -> None:
        its.lost += worker not in its.fates  # once, also if it is broken off because the worker timed out
        its.fates[worker] = fate
        if fate in REFUSED:
            its.refused.add(worker)

    def _count_lost(self, worker: int) -> None:
        self._lost_in_a_row[worker] += 1
        if (lost := self._lost_in_a_row[worker]) >= MAX_LOST_IN_A_ROW:
            self._left_out_until[worker] = self._next + min(2**lost, MAX_ITERATIONS_LEFT_OUT)

    def end(self, now: float, live: Set[int]) -> End | None:
        """End the current iteration if it is over, where these workers are alive."""
        its = self._current
        if its is None or its.used == 0:
            return None
        if its.used >= its.k:
            cause = Cause.K_REACHED
        elif live <= its.fates.keys():
            cause = Cause.NO_MORE_EXPECTED
        elif its.give_up is not None and now >= its.give_up:
            cause = its.cause_then
        else:
            return None
        self._current = None
        return End(its.iteration, its.used, cause, max(now - its.published, 0.0), its.lost)

    def take_arrivals(self) -> list[Arrival]:
        """What has arrived since this was asked for last, in order."""
        arrivals, self._arrivals = self._arrivals, []
        return arrivals
