"""A parameter server and its workers on a virtual clock: what they would report to a controller.

Only `record.py` uses this. What was recorded does not change with it.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dbw.v1.iteration_pb2 import (
    END_CAUSE_DEADLINE,
    END_CAUSE_K_REACHED,
    END_CAUSE_MAX_WAIT,
    END_CAUSE_NO_MORE_EXPECTED,
    Arrivals,
    EndCause,
    GradientMoments,
    WithinWorkerVariance,
)
from dbw.v1.sync_mode_pb2 import SYNC_MODE_PUSH_INTERRUPT, SyncMode

Vector = npt.NDArray[np.float64]
# How long a worker takes for a gradient: of the generator, the worker and the iteration.
RoundTrips = Callable[[np.random.Generator, int, int], float]


def exponential(rng: np.random.Generator, worker: int, iteration: int) -> float:
    """Round trips of 1 second in the mean, 0.2 at least."""
    del worker, iteration
    return 0.2 + float(rng.exponential(0.8))


def two_slow(rng: np.random.Generator, worker: int, iteration: int) -> float:
    """Round trips of 1 second in the mean, 0.7 at least; of the first two workers four times as long."""
    del iteration
    return (0.7 + float(rng.exponential(0.3))) * (4.0 if worker < 2 else 1.0)


def slowdown(rng: np.random.Generator, worker: int, iteration: int) -> float:
    """Nearly always the same time; from iteration 20 on, every other worker takes four times as long."""
    return float(rng.uniform(0.9, 1.1)) * (4.0 if iteration >= 20 and worker % 2 else 1.0)


def steady(rng: np.random.Generator, worker: int, iteration: int) -> float:
    """Nearly always the same time, but the later workers are slower."""
    del iteration
    return float(rng.uniform(0.95, 1.05)) * (1.0 + 0.5 * worker)


def rounded(number: float) -> float:
    """A number that takes little space in a recording."""
    return float(f"{number:.7g}")


class Ended(NamedTuple):
    """An iteration that ended."""

    k: int
    seconds: float
    cause: EndCause.ValueType
    published: float
    lost: int
    arrivals: list[Arrivals]  # since the iteration before ended, late ones included


@dataclass
class Cluster:
    """Workers, each of which computes one gradient after the other."""

    rng: np.random.Generator
    workers: list[int]
    mode: SyncMode.ValueType
    round_trips: RoundTrips = exponential
    loss_probability: float = 0.0  # that a gradient is lost
    max_wait: float | None = None
    now: float = 0.0
    _busy: list[tuple[float, int, int]] = field(default_factory=list)  # when done, who, with which iteration
    _published: dict[int, float] = field(default_factory=dict)
    _ranks: Counter[int] = field(default_factory=Counter)  # arrivals of each iteration so far

    def begin_anew(self) -> None:
        """Forget what workers compute: the parameter server was started again."""
        self._busy.clear()
        self._published.clear()
        self._ranks.clear()

    def leave(self, *workers: int) -> None:
        """Let workers die."""
        self.workers = [worker for worker in self.workers if worker not in workers]
        self._busy = [entry for entry in self._busy if entry[1] not in workers]
        heapq.heapify(self._busy)

    def join(self, *workers: int) -> None:
        """Let workers come, or come back."""
        self.workers = sorted({*self.workers, *workers})

    def _start(self, worker: int, iteration: int) -> None:
        seconds = self.round_trips(self.rng, worker, iteration)
        heapq.heappush(self._busy, (self.now + seconds, worker, iteration))

    def run(self, iteration: int, k: int, deadline: float | None) -> Ended:
        """Go through an iteration."""
        begin = self._published[iteration] = self.now
        if self.mode == SYNC_MODE_PUSH_INTERRUPT:
            self._busy.clear()
        busy = {worker for _, worker, _ in self._busy}
        for worker in self.workers:
            if worker not in busy:
                self._start(worker, iteration)
        limits = [(limit, cause) for limit, cause in self._limits(deadline) if limit is not None]
        limit, cause_of_limit = min(limits, default=(np.inf, END_CAUSE_DEADLINE))
        arrived = lost = 0
        batches: dict[int, Arrivals] = {}
        while True:
            if not self._busy and arrived:
                cause = END_CAUSE_NO_MORE_EXPECTED
                break
            if arrived and (not self._busy or self._busy[0][0] > begin + limit):
                self.now, cause = begin + limit, cause_of_limit
                break
            self.now, worker, version = heapq.heappop(self._busy)
            if self.rng.random() < self.loss_probability and (arrived or self._busy):
                lost += version == iteration
            else:
                batch = batches.setdefault(version, Arrivals(iteration=version, preceding=self._ranks[version]))
                batch.seconds.append(round(self.now - self._published[version], 5))
                batch.workers.append(worker)
                self._ranks[version] += 1
                arrived += version == iteration
            if version != iteration:
                self._start(worker, iteration)
            elif arrived == min(k, len(self.workers)):
                cause = END_CAUSE_K_REACHED
                break
            elif arrived == 1 and self.now > begin + limit:
                cause = cause_of_limit
                break
        return Ended(arrived, round(self.now - begin, 5), cause, round(begin, 5), lost, list(batches.values()))

    def _limits(self, deadline: float | None) -> Sequence[tuple[float | None, EndCause.ValueType]]:
        return (deadline, END_CAUSE_DEADLINE), (self.max_wait, END_CAUSE_MAX_WAIT)


@dataclass
class Descent:
    """Gradient descent on a quadratic function, with noise in every worker's gradient."""

    rng: np.random.Generator
    rate: float = 0.1
    noise: float = 20.0  # V(g)
    floor: float = 0.1  # the least loss
    curvatures: Vector = field(default_factory=lambda: np.linspace(0.2, 2.0, 12))
    parts: int = 1  # that workers split their mini-batches into

    def __post_init__(self) -> None:
        self._position = np.full(len(self.curvatures), 1.0)

    def step(self, k: int) -> tuple[float, GradientMoments]:
        """Average k gradients and move; returns the loss before, as the workers saw it, and the gradients' moments."""
        loss = self.floor + 0.5 * float(self.curvatures @ self._position**2)
        dimensions = len(self.curvatures)
        noise = self.rng.normal(0.0, np.sqrt(self.noise * self.parts / dimensions), (k, self.parts, dimensions))
        gradients = self.curvatures * self._position + noise.mean(axis=1)
        mean = gradients.mean(axis=0)
        self._position = self._position - self.rate * mean
        moments = GradientMoments(
            mean_squared_norm=rounded(float(mean @ mean)), sum_squared_norms=rounded(float((gradients**2).sum()))
        )
        if self.parts > 1:
            spread = ((noise - noise.mean(axis=1, keepdims=True)) ** 2).sum() / (self.parts * (self.parts - 1))
            within = WithinWorkerVariance(variance=rounded(float(spread) / k), degrees_of_freedom=k * (self.parts - 1))
            moments.within_worker.CopyFrom(within)
        seen = loss + float(self.rng.normal(0.0, 0.02 * loss / np.sqrt(k)))
        return rounded(seen), moments
