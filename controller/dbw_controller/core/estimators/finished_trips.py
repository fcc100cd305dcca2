"""Durations of iterations where workers finish what they have begun (Push & Wait, Pull).

A worker begins with a gradient when its parameters are published, or when it has finished the one before. So the times
of publications and arrivals, late ones too, tell how long each took. Shadows of the cluster replay that for every k.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta, Raw, Struct

from dbw_controller.core.estimators import round_trips
from dbw_controller.core.estimators.forecast import Forecast, forecast
from dbw_controller.core.estimators.round_trips import REMEMBERED, RoundTrips
from dbw_controller.core.estimators.shadows import Shadows, replay_kernel
from dbw_controller.core.reports import MAX_ITERATION, MAX_SECONDS, Arrivals, IterationSummary
from dbw_controller.core.state import Count, Real, Workers, decode, pack, unpack

PUBLICATIONS = 256  # that are remembered: nobody is later than that
CHANGED_FRACTION = 1 / 16  # of the workers: if they have changed, the cluster is not what it was


class FinishedTripsState(Struct, frozen=True):
    """The round trips of a cluster, whose columns are those of `RoundTrips`."""

    live: Workers
    now: Real
    published: Annotated[list[tuple[Count, Real]], Meta(max_length=2 * PUBLICATIONS)]
    seconds: bytes
    filled: bytes
    next: bytes
    version: bytes
    begun: bytes
    guessed: bytes
    unusual: bytes


BOUNDS: dict[str, tuple[float, float]] = {  # of the columns; only `begun` may hold any number, and NaN
    "seconds": (0, MAX_SECONDS),
    "filled": (0, REMEMBERED),
    "next": (0, REMEMBERED - 1),
    "version": (-1, MAX_ITERATION),
    "guessed": (0, 1),
    "unusual": (-REMEMBERED, REMEMBERED),
}


class FinishedTrips:
    """Keeps the last round trips of each worker, and shadows of the cluster for what would happen with any k."""

    def __init__(self) -> None:
        self._published: dict[int, float] = {}  # when iterations were, by the parameter server's clock
        self._now = 0.0  # by that clock, when the last one ended
        self._set((), RoundTrips.unknown(0))

    def _set(self, live: tuple[int, ...], trips: RoundTrips) -> None:
        self._live, self._trips, self._shadows = live, trips, Shadows.new(len(live))
        self._slots = {number: slot for slot, number in enumerate(live)}

    def ended(self, summary: IterationSummary, arrivals: Iterable[Arrivals], live: Sequence[int]) -> None:
        """Learn how long workers took, and let the shadows go on."""
        if tuple(live) != self._live:
            self._resize(tuple(live))
        number, published, duration = summary.iteration, summary.published_seconds, summary.duration_seconds
        if published is None or not abs(published) <= MAX_SECONDS:  # NaN, or no seconds
            published = self._now
        if number - 1 not in self._published or published < self._now - duration:
            self.reset()  # what workers have done meanwhile is not known, or the clock is another one
        self._published[number] = published
        self._published.pop(number - PUBLICATIONS, None)
        self._now = published + duration
        self._trips.begun[np.isnan(self._trips.begun)] = published
        changed = sum(map(self._arrive, sorted(arrivals, key=lambda batch: batch.iteration)))
        guessed = round_trips.kernels().guess(self._trips, self._now)
        if changed + guessed >= CHANGED_FRACTION * len(live):
            self._shadows.forget()
        if guessed >= 0:
            replay_kernel()(self._shadows, self._trips)

    def _arrive(self, batch: Arrivals) -> int:
        """Take note of arrivals; returns how many workers are not what they were."""
        began, following = (self._published.get(batch.iteration + i, math.nan) for i in range(2))
        if batch.workers is None or math.isnan(began):
            return 0
        slots = np.array([self._slots.get(number, -1) for number in batch.workers], np.int64)
        finished = began + batch.seconds
        return round_trips.kernels().arrive(self._trips, slots, finished, batch.iteration, began, following)

    def _resize(self, live: tuple[int, ...]) -> None:
        """Make room for these workers. What is known of those that stay is kept."""
        stay = [(slot, self._slots[number]) for slot, number in enumerate(live) if number in self._slots]
        trips = RoundTrips.unknown(len(live))
        for new, old in zip(trips, self._trips, strict=True) if stay else ():
            to, of = np.array(stay).T
            new.reshape(len(live), -1)[to] = old.reshape(len(self._live), -1)[of]
        self._set(live, trips)

    def reset(self) -> None:
        """All workers are idle, as far as is known, and iteration numbers may start again."""
        self._published.clear()
        self._trips.version[:], self._trips.begun[:] = -1, math.nan

    def forecast(self) -> Forecast | None:
        """How long iterations last in the shadows; between those that there are, on a straight line."""
        shadows, n = self._shadows, len(self._live)
        if not (n and shadows.weight[0]):
            return None
        means = shadows.mean / shadows.weight, shadows.square / shadows.weight
        if len(shadows.k) < n:
            k = np.arange(1, n + 1)
            means = np.interp(k, shadows.k, means[0]), np.interp(k, shadows.k, means[1])
        return forecast(*means, n - int(self._trips.guessed.sum()))

    def snapshot(self) -> FinishedTripsState:
        """All that was learnt; the shadows find their way again from the round trips."""
        columns = {name: pack(column) for name, column in self._trips._asdict().items()}
        return FinishedTripsState(list(self._live), self._now, list(self._published.items()), **columns)

    def restore(self, data: Raw) -> None:
        """Replace all that was learnt by an encoded state."""
        state = decode(data, FinishedTripsState)
        trips = RoundTrips.unknown(len(state.live))
        for name, column in trips._asdict().items():
            column[:] = unpack(getattr(state, name), len(column), *BOUNDS.get(name, ()))
        self._published, self._now = dict(state.published), state.now
        self._set(tuple(state.live), trips)
        if state.live and trips.filled.all():
            replay_kernel()(self._shadows, trips)
