"""Clusters on a virtual clock, as a parameter server tells a controller about them."""

from collections import Counter
from typing import Any

import numpy as np

from dbw_controller.core.reports import Arrivals, EndCause, IterationSummary, Report
from dbw_controller.core.spec import SyncMode
from dbw_experiments.laboratory.cluster import Cluster, Iteration
from dbw_ps.rounds import Arrival
from dbw_worker.delays import parse_delay
from dbw_worker.randomness import draws_of


def times(iteration: int, published: float | None, seconds: float) -> IterationSummary:
    """A summary that tells when an iteration took place, and nothing else of interest."""
    return IterationSummary(iteration, 1, seconds, published_seconds=published)


class Timeline:
    """Iterations of a cluster whose workers have numbers from 0 on."""

    def __init__(self, workers: int, delay: str, seed: int = 0, sync_mode: SyncMode = SyncMode.PUSH_WAIT) -> None:
        self.live = tuple(range(workers))
        self._delay, self._seed = parse_delay(delay), seed
        self._cluster = Cluster(workers, self._delay, seed, sync_mode)
        self._told: Counter[int] = Counter()  # arrivals of each iteration

    @property
    def now(self) -> float:
        """By the parameter server's clock."""
        return self._cluster.now

    def round_trip(self, worker: int, version: int) -> float:
        """How long a worker takes for a gradient, where that does not depend on when it begins."""
        return self._delay.seconds(worker, version, 0.0, draws_of(self._seed, worker, version)[1])

    def iterate(self, k: int, deadline: float | None = None) -> tuple[IterationSummary, list[Arrivals]]:
        """Go through an iteration."""
        done = self._cluster.iterate(k, deadline)
        return times(done.end.iteration, done.published, done.end.seconds), self._batches(done, numbered=True)

    def report(self, k: int, deadline: float | None = None, numbered: bool = True, **fields: Any) -> Report:
        """Go through an iteration, and report it. Some fields of the summary have to be given."""
        done = self._cluster.iterate(k, deadline)
        cause = EndCause[done.end.cause.name]
        told = {"end_cause": cause, "published_seconds": done.published, **fields}
        summary = IterationSummary(done.end.iteration, done.end.k, done.end.seconds, **told)
        return Report(self._batches(done, numbered), summary)

    def _batches(self, done: Iteration, numbered: bool) -> list[Arrivals]:
        versions: dict[int, list[Arrival]] = {}
        for arrival in done.arrivals:
            versions.setdefault(arrival.iteration, []).append(arrival)
        batches = []
        for version, arrivals in versions.items():
            workers = [arrival.worker for arrival in arrivals] if numbered else None
            seconds = np.array([arrival.seconds for arrival in arrivals])
            batches.append(Arrivals(version, seconds, self._told[version], workers))
            self._told[version] += len(arrivals)
        return batches
