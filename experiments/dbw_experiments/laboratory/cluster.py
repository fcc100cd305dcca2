"""Workers and the parameter server's rounds on a virtual clock: discrete events, no computation.

A gradient takes as long as the delay that a real worker would be told to wait, everything else takes no time. So Pull
and Push & Wait are the same here: what tells them apart is how parameters travel.
"""

import math
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from dbw_controller.core.spec import SyncMode
from dbw_experiments.laboratory.membership import Change
from dbw_ps.rounds import Arrival, End, Rounds, Verdict
from dbw_worker.delays import Delay
from dbw_worker.randomness import draws_of


class Iteration(NamedTuple):
    """An iteration that has ended."""

    end: End
    published: float  # when it began, in virtual seconds
    workers: tuple[int, ...]  # whose gradients are used, in order of arrival
    arrivals: list[Arrival]  # all that came meanwhile, late ones of earlier iterations too


class Cluster:
    """A parameter server with n workers, all idle at first, that may come and go."""

    def __init__(
        self,
        workers: int,
        delay: Delay,
        seed: int,
        sync_mode: SyncMode = SyncMode.PUSH_WAIT,
        changes: Sequence[Change] = (),
    ) -> None:
        self.now = 0.0
        self._delay, self._seed, self._sync_mode = delay, seed, sync_mode
        self._changes = deque(changes)  # that are to come
        self._live = set(range(workers))
        self._idle = set(self._live)
        self._computing: list[tuple[float, int, int]] = []  # a heap: when it is done, −version, the worker
        self._rounds = Rounds(first=0)
        self._come_and_go()

    @property
    def live(self) -> list[int]:
        """The workers that are there."""
        return sorted(self._live)

    def iterate(self, k: int, deadline: float | None = None) -> Iteration:
        """Publish parameters now, and wait for k of their gradients, at most until a deadline."""
        published, version = self.now, self._rounds.begin(k, self.now, deadline)
        if self._sync_mode is SyncMode.PUSH_INTERRUPT:
            self._computing.clear()
            self._idle.update(self._live)
        self._hand_out(version)
        while (end := self._rounds.end(self.now, self._live)) is None:
            self._advance(version)
        self._come_and_go()  # so that the next decision knows of it
        arrivals = self._rounds.take_arrivals()
        used = tuple(arrival.worker for arrival in arrivals if arrival.iteration == version)
        return Iteration(end, published, used, arrivals)

    def _hand_out(self, version: int) -> None:
        """Let idle workers begin with the current version, unless they are done with it."""
        for worker in sorted(self._idle):
            if self._rounds.verdict(worker, version) is Verdict.USED:
                self._idle.remove(worker)
                self._compute(worker, version)

    def _compute(self, worker: int, version: int) -> None:
        """Let a worker begin with a gradient."""
        _, random = draws_of(self._seed, worker, version)
        seconds = self._delay.seconds(worker, version, self.now, random)
        heappush(self._computing, (self.now + seconds, -version, worker))  # of one instant, new versions come first

    def _advance(self, current: int) -> None:
        """Go to the next event: a gradient, workers that come or go, or the time at which no more are waited for."""
        done = self._computing[0][0] if self._computing else math.inf
        change = self._changes[0].seconds if self._changes else math.inf
        give_up = self._rounds.wake_at
        if give_up is not None and give_up < min(done, change):
            self.now = give_up
            return
        if change < done:
            self.now = change
            self._come_and_go()
            self._hand_out(current)
            return
        self.now, negative, worker = heappop(self._computing)
        version = -negative
        self._rounds.record(worker, version, self._rounds.verdict(worker, version), self.now)
        if version == current:
            self._idle.add(worker)
        else:
            self._compute(worker, current)

    def _come_and_go(self) -> None:
        """Let workers come and go whose time it is. What those were computing that go is lost."""
        while self._changes and self._changes[0].seconds <= self.now:
            _, leaves, worker = self._changes.popleft()
            if leaves:
                self._live.remove(worker)
                self._rounds.leave(worker)
                self._idle.discard(worker)
                self._computing = [computing for computing in self._computing if computing[-1] != worker]
                heapify(self._computing)
            else:
                self._live.add(worker)
                self._rounds.join(worker)
                self._idle.add(worker)
