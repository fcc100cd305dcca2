"""Workers and the parameter server's rounds on a virtual clock: discrete events, no computation.

A gradient takes as long as the delay that a real worker would be told to wait, everything else takes no time. So Pull
and Push & Wait are the same here: what tells them apart is how parameters travel.
"""

from heapq import heappop, heappush
from typing import NamedTuple

from dbw_controller.spec import SyncMode
from dbw_ps.rounds import Arrival, End, Rounds
from dbw_worker.delays import Delay
from dbw_worker.randomness import draws_of


class Iteration(NamedTuple):
    """An iteration that has ended."""

    end: End
    published: float  # when it began, in virtual seconds
    workers: tuple[int, ...]  # whose gradients are used, in order of arrival
    arrivals: list[Arrival]  # all that came meanwhile, late ones of earlier iterations too


class Cluster:
    """A parameter server with n workers, all idle at first."""

    def __init__(self, workers: int, delay: Delay, seed: int, sync_mode: SyncMode = SyncMode.PUSH_WAIT) -> None:
        self.now = 0.0
        self._delay, self._seed, self._sync_mode = delay, seed, sync_mode
        self._workers = range(workers)
        self._idle = set(self._workers)
        self._computing: list[tuple[float, int, int]] = []  # a heap: when it is done, −version, the worker
        self._rounds = Rounds(first=0)
        for worker in self._workers:
            self._rounds.join(worker)

    def iterate(self, k: int, deadline: float | None = None) -> Iteration:
        """Publish parameters now, and wait for k of their gradients, at most until a deadline."""
        published, version = self.now, self._rounds.begin(k, self.now, deadline)
        if self._sync_mode is SyncMode.PUSH_INTERRUPT:
            self._computing.clear()
            self._idle.update(self._workers)
        for worker in sorted(self._idle):
            self._compute(worker, version)
        self._idle.clear()
        while (end := self._rounds.end(self.now)) is None:
            self._advance(version)
        arrivals = list(self._rounds.take_arrivals())
        used = tuple(arrival.worker for arrival in arrivals if arrival.iteration == version)
        return Iteration(end, published, used, arrivals)

    def _compute(self, worker: int, version: int) -> None:
        """Let a worker begin with a gradient."""
        _, random = draws_of(self._seed, worker, version)
        seconds = self._delay.seconds(worker, version, self.now, random)
        heappush(self._computing, (self.now + seconds, -version, worker))  # of one instant, new versions come first

    def _advance(self, current: int) -> None:
        """Go to the next event: a gradient, or the time at which no more are waited for."""
        give_up = self._rounds.wake_at
        if give_up is not None and give_up < self._computing[0][0]:
            self.now = give_up
            return
        self.now, negative, worker = heappop(self._computing)
        version = -negative
        self._rounds.arrive(worker, version, self.now)
        if version == current:
            self._idle.add(worker)
        else:
            self._compute(worker, current)
