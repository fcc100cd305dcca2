"""Which arrivals are known already, and which duration samples the others make.

A sample t_{h,i} of iteration t needs h = k_{t−1}. Arrivals may be repeated, come in any order, late, or before it is
known what h was; here each one makes at most one sample, as soon as h is known.
"""

from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Struct

from dbw_controller.core.kernels import Array
from dbw_controller.core.reports import MAX_WORKERS, Arrivals
from dbw_controller.core.state import Count, K, Real, one_more

# Arrivals of iterations that are further away from the next one to end are ignored.
REMEMBERED_ITERATIONS = 1024
# How many entries may come before those that are too far away are looked for. All are in every snapshot.
FORGET_EVERY = 128
# Runs of arrivals that may wait for their h, and what each takes beside its times.
MAX_WAITING_RUNS, RUN_BYTES = 4096, 200


class Sample(NamedTuple):
    """Times t_{h,first}, t_{h,first+1}, … of one iteration."""

    iteration: int
    h: int
    first: int
    seconds: Array


class Entry(Struct):
    """What is known of one iteration."""

    previous_k: int | None = None  # h
    k: int | None = None  # None while it has not ended
    ranks: int = 0  # bit i−1: the i-th arrival has been reported


class EntryState(Struct, frozen=True, array_like=True):
    """An entry, with its ranks as a hexadecimal number."""

    iteration: Count
    previous_k: K | None
    k: K | None
    ranks: Annotated[str, Meta(pattern="^[0-9a-f]+$", max_length=MAX_WORKERS // 4)]


class WaitingState(Struct, frozen=True, array_like=True):
    """Arrivals of consecutive ranks whose h is not known yet."""

    iteration: Count
    first: K
    seconds: Annotated[list[Real], Meta(max_length=MAX_WORKERS)]


class ArrivalLogState(Struct, frozen=True):
    """All that an arrival log knows."""

    next: Count
    entries: Annotated[list[EntryState], Meta(max_length=4 * REMEMBERED_ITERATIONS)]
    waiting: list[WaitingState]
    ended_without_late: Count


class ArrivalLog:
    """The last iterations' arrivals."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._waiting: dict[int, list[tuple[int, Array]]] = {}  # ranks and times of arrivals whose h is not known yet
        self._room = FORGET_EVERY  # for entries
        self._next = 0  # the iteration after the last one that ended
        self._center = 0  # arrivals of iterations near this one are taken in; it moves as soon as an end is reported
        self.ended_without_late = 0  # iterations that did not wait for all workers, since any worker was late
        self.late_arrivals = 0  # arrivals that were not waited for, since this log was made

    @property
    def waiting_bytes(self) -> int:
        """What arrivals take whose h is not known yet, roughly."""
        if not self._waiting:
            return 0
        return sum(RUN_BYTES + times.nbytes for runs in self._waiting.values() for _, times in runs)

    def begin(self, iteration: int) -> None:
        """Go to an iteration, with no knowledge of what was waited for before it."""
        self._entries = {i: entry for i, entry in self._entries.items() if i < iteration}
        self._entries[iteration] = Entry()
        self._waiting.clear()
        self._next = self._center = iteration

    def learn_previous_k(self, iteration: int, previous_k: int) -> list[Sample]:
        """Take note of h of an iteration, if it is not known; returns the samples that have waited for it."""
        entry = self._entry(iteration)
        if entry is None or entry.previous_k is not None:
            return []
        entry.previous_k = previous_k
        return [Sample(iteration, previous_k, *waiting) for waiting in self._waiting.pop(iteration, [])]

    def foresee_end(self, iteration: int) -> None:
        """Take in what is reported together with the end of an iteration as if that had ended already."""
        self._center = max(self._next, iteration + 1)

    def arrive(self, arrivals: Arrivals, most: int) -> list[Sample]:
        """Take arrivals in, as far as their ranks are at most `most`; returns the samples that they make at once."""
        entry = self._entry(arrivals.iteration)
        if entry is None:
            return []
        seconds = arrivals.seconds
        if arrivals.preceding + len(seconds) > most:
            seconds = seconds[: max(most - arrivals.preceding, 0)]
        before = entry.ranks
        fresh = _fresh(entry, arrivals.preceding, seconds)
        if entry.k is not None:
            self._notice_late(entry.k, entry.ranks ^ before)
        if entry.previous_k is not None:
            return [Sample(arrivals.iteration, entry.previous_k, *new) for new in fresh]
        if arrivals.iteration >= self._next and self._has_room(len(fresh)):  # its summary may still tell
            copies = [(first, times.copy()) for first, times in fresh]  # without the rest of what was reported
            self._waiting.setdefault(arrivals.iteration, []).extend(copies)
        return []

    def _has_room(self, runs: int) -> bool:
        return sum(map(len, self._waiting.values())) + runs <= MAX_WAITING_RUNS

    def end(self, iteration: int, k: int, live_workers: int) -> list[Sample]:
        """Take note of an iteration's end; returns the samples that have waited for its k."""
        self._next = self._center = iteration + 1
        entry = self._entry(iteration)
        assert entry is not None, "the iteration before the next one is near"
        entry.k = k
        if k < live_workers:
            self.ended_without_late = one_more(self.ended_without_late)
        self._notice_late(k, entry.ranks)
        if self._waiting:
            self._waiting = {i: waiting for i, waiting in self._waiting.items() if i >= self._next}
        if len(self._entries) > self._room:
            self._entries = {i: entry for i, entry in self._entries.items() if self._is_near(i)}
            self._room = len(self._entries) + FORGET_EVERY
        return self.learn_previous_k(self._next, k)

    def _entry(self, iteration: int) -> Entry | None:
        """The entry of an iteration, if need be a new one; None if it is too far away."""
        if not self._is_near(iteration):
            return None
        entry = self._entries.get(iteration)
        if entry is None:
            before = self._entries.get(iteration - 1)
            entry = self._entries[iteration] = Entry(previous_k=before.k if before else None)
        return entry

    def _notice_late(self, k: int, ranks: int) -> None:
        """Count those of an iteration's arrivals that were not waited for."""
        if late := ranks >> k:
            self.ended_without_late = 0
            self.late_arrivals += late.bit_count()

    def _is_near(self, iteration: int) -> bool:
        return abs(iteration - self._center) <= REMEMBERED_ITERATIONS

    def snapshot(self) -> ArrivalLogState:
        """All that is known."""
        entries = [EntryState(i, entry.previous_k, entry.k, f"{entry.ranks:x}") for i, entry in self._entries.items()]
        waiting = [WaitingState(i, first, times.tolist()) for i, runs in self._waiting.items() for first, times in runs]
        return ArrivalLogState(self._next, entries, waiting, self.ended_without_late)

    def restore(self, state: ArrivalLogState) -> None:
        """Replace all that is known by a state."""
        self._entries = {
            entry.iteration: Entry(entry.previous_k, entry.k, int(entry.ranks, 16)) for entry in state.entries
        }
        self._waiting = {}
        for run in state.waiting:
            self._waiting.setdefault(run.iteration, []).append((run.first, np.array(run.seconds)))
        self._next = self._center = state.next
        self.ended_without_late = state.ended_without_late


def _fresh(entry: Entry, preceding: int, seconds: Array) -> list[tuple[int, Array]]:
    """The arrivals whose rank was not reported before, in runs of consecutive ranks; from now on they are known."""
    if not len(seconds):
        return []
    ranks = ((1 << len(seconds)) - 1) << preceding
    known = entry.ranks & ranks
    entry.ranks |= ranks
    if not known:
        return [(preceding + 1, seconds)]
    new = [j for j in range(len(seconds)) if not known >> (preceding + j) & 1]
    return [(preceding + j + 1, seconds[j : j + 1]) for j in new]
