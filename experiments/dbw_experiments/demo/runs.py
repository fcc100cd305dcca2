"""One training of a demonstration, as it was recorded by the services that ran it."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from dbw_ps.losses import LOSSES


@dataclass(frozen=True)
class Iteration:
    """One iteration."""

    number: int
    begin: float  # seconds since training began: when its parameters were published
    duration: float  # in seconds, until it had its gradients
    k: int  # how many it waited for
    loss: float | None
    estimated: float | None  # how long the controller expected it to take, in seconds
    explanation: str  # why this k, in words


@dataclass(frozen=True)
class Arrival:
    """A gradient, or the notice that one is done."""

    iteration: int
    worker: int
    time: float  # seconds since training began
    is_late: bool  # it came when its iteration had enough


@dataclass(frozen=True)
class Run:
    """A training under one policy."""

    policy: str
    workers: int
    target_loss: float
    iterations: tuple[Iteration, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    accuracy: float | None = None  # on examples that were held out, between 0 and 1

    @cached_property
    def seconds(self) -> float:
        """How long training took."""
        last = self.iterations[-1]
        return last.begin + last.duration

    @cached_property
    def loss(self) -> float:
        """The mean loss of the last iterations, of as many as the parameter server looks at; NaN without any."""
        losses = [i.loss for i in self.iterations if i.loss is not None][-LOSSES:]
        return fmean(losses) if losses else math.nan

    @cached_property
    def reached(self) -> bool:
        """Whether it came down to the target, as the parameter server sees it."""
        return len(self.iterations) >= LOSSES and self.loss <= self.target_loss

    @cached_property
    def mean_k(self) -> float:
        """How many gradients it waited for, on average."""
        return fmean(iteration.k for iteration in self.iterations)

    @cached_property
    def sent(self) -> Counter[int]:
        """How many gradients of each worker came."""
        return Counter(arrival.worker for arrival in self.arrivals)

    @cached_property
    def late(self) -> Counter[int]:
        """How many gradients of each worker were late."""
        return Counter(arrival.worker for arrival in self.arrivals if arrival.is_late)

    def late_share(self, worker: int) -> float:
        """Which share of a worker's gradients came when the iteration had enough."""
        return self.late[worker] / max(1, self.sent[worker])
