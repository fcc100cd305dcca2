"""How long each worker took for its last gradients, where workers finish what they have begun."""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dbw_controller.core.kernels import Array, compiled, direct
from dbw_controller.core.reports import MAX_SECONDS

Integers = npt.NDArray[np.int64]
REMEMBERED = 20  # round trips of each worker
UNUSUAL = 2.0  # so many times longer than all before, or shorter: if it lasts, the worker is not what it was
LASTING = 3  # round trips in a row


class RoundTrips(NamedTuple):
    """What is known of each worker: columns of numbers."""

    seconds: Array  # the last REMEMBERED of each worker, one worker after the other
    filled: Integers  # how many there are
    next: Integers  # where the next one goes
    version: Integers  # the last iteration whose gradient it has finished; −1: none
    begun: Array  # when it began with what it computes; NaN: it is idle
    guessed: Integers  # 1: its only round trip is a guess
    unusual: Integers  # how many of the last were unusually long or, negative, short

    @classmethod
    def unknown(cls, workers: int) -> Self:
        """Nothing is known of any worker."""
        return cls(
            seconds=np.zeros(workers * REMEMBERED),
            filled=np.zeros(workers, np.int64),
            next=np.zeros(workers, np.int64),
            version=np.full(workers, -1),
            begun=np.full(workers, math.nan),
            guessed=np.zeros(workers, np.int64),
            unusual=np.zeros(workers, np.int64),
        )


class Kernels(NamedTuple):
    """The kernels that are called from outside."""

    arrive: Callable[[RoundTrips, Integers, Array, int, float, float], int]
    guess: Callable[[RoundTrips, float], int]


@cache
def kernels() -> Kernels:
    """Compile the kernels, for any number of workers."""
    trips = RoundTrips.unknown(1)
    return Kernels(direct(arrive, trips, trips.filled, trips.begun, 0, 0.0, 0.0), direct(guess, trips, 0.0))


@compiled
def extremes(trips: RoundTrips, worker: int) -> tuple[float, float]:
    """A worker's shortest and longest round trip but for the last that were unusual; infinity and 0 without any."""
    shortest, longest = math.inf, 0.0
    for age in range(abs(trips.unusual[worker]), trips.filled[worker]):
        seconds = trips.seconds[worker * REMEMBERED + (trips.next[worker] - 1 - age) % REMEMBERED]
        shortest, longest = min(shortest, seconds), max(longest, seconds)
    return shortest, longest


@compiled
def arrive(
    trips: RoundTrips, workers: Integers, finished: Array, version: int, published: float, following: float
) -> int:
    """Take note of when workers finished gradients of a version; those of −1, and what was told before, do not count.

    They begin with the next version at once, or as soon as it is published, `following`; NaN: it is not yet. Those that
    were not heard of before have begun when theirs was, as far as is known. Returns how many are not what they were.
    """
    changed = 0
    for i in range(len(workers)):
        worker = workers[i]
        if worker >= 0 and trips.version[worker] < version:
            begun = published if trips.version[worker] < 0 else trips.begun[worker]
            changed += remember(trips, worker, max(finished[i] - begun, 0.0))
            trips.version[worker] = version
            trips.begun[worker] = finished[i] if finished[i] > following else following
    return changed


@compiled
def remember(trips: RoundTrips, worker: int, seconds: float) -> bool:
    """Add a round trip; after several unusual ones in a row it replaces all before. Returns whether it did."""
    unusual = 0
    if trips.filled[worker] >= LASTING:
        shortest, longest = extremes(trips, worker)
        unusual = 1 if seconds > UNUSUAL * longest else -1 if UNUSUAL * seconds < shortest else 0
        unusual += trips.unusual[worker] if unusual * trips.unusual[worker] > 0 else 0
    changed = abs(unusual) == LASTING
    if changed or trips.guessed[worker] == 1:
        trips.guessed[worker] = trips.filled[worker] = trips.next[worker] = unusual = 0
    trips.unusual[worker] = unusual
    trips.seconds[worker * REMEMBERED + trips.next[worker]] = min(seconds, MAX_SECONDS)
    trips.next[worker] = (trips.next[worker] + 1) % REMEMBERED
    trips.filled[worker] = min(trips.filled[worker] + 1, REMEMBERED)
    return changed


@compiled
def guess(trips: RoundTrips, now: float) -> int:
    """Guess what is not known of workers; returns for how many anew, or −1 if nothing is known of any.

    The time that a worker has spent is taken for its round trip where that is unusually long already. Workers that have
    just come are taken to be like the others.
    """
    total, known, anew = 0.0, 0, 0
    for worker in range(len(trips.filled)):
        if trips.filled[worker] > 0:
            _, longest = extremes(trips, worker)
            elapsed = now - trips.begun[worker]  # NaN is not more than anything
            if elapsed > longest * (1.0 if trips.guessed[worker] == 1 else UNUSUAL):
                anew += trips.guessed[worker] == 0
                pretend(trips, worker, elapsed)
                longest = elapsed
            total, known = total + longest, known + 1
    for worker in range(len(trips.filled) if known else 0):
        if trips.filled[worker] == 0:
            anew += 1
            pretend(trips, worker, total / known)
    return anew if known else -1


@compiled
def pretend(trips: RoundTrips, worker: int, seconds: float) -> None:
    """Take a guess for a worker's only round trip."""
    trips.seconds[worker * REMEMBERED] = min(seconds, MAX_SECONDS)
    trips.filled[worker] = trips.next[worker] = trips.guessed[worker] = 1
    trips.unusual[worker] = 0
