"""Who is alive, as far as a parameter server tells: the numbers of its workers, or only how many there are."""

from collections.abc import Sequence
from itertools import chain

from dbw_controller.core.reports import Arrivals, Membership


class Roster:
    """The numbers of the workers that are alive."""

    def __init__(self) -> None:
        self._workers: tuple[int, ...] = ()
        self._known: frozenset[int] = frozenset()
        self._heard: dict[int, None] = {}  # those among them that were heard of, the last one last

    def update(self, membership: Membership, arrivals: Sequence[Arrivals]) -> tuple[int, ...]:
        """Their numbers, as many as are alive; none if no arrival has ever had one.

        Where only their number is told, these are the workers that were heard of last. Those that were never heard of
        have negative numbers.
        """
        if membership.workers is not None:
            self._set(tuple(membership.workers))
            return self._workers
        numbered = (batch.workers for batch in arrivals if batch.workers is not None)
        for worker in map(int, chain.from_iterable(numbered)):
            self._heard.pop(worker, None)
            self._heard[worker] = None
        n = membership.live_workers
        if n != len(self._workers) or not self._heard.keys() <= self._known:
            self._heard = dict.fromkeys(list(self._heard)[-n:] if n else ())
            absent = range(-1, len(self._heard) - n - 1, -1)
            self._workers = (*sorted(self._heard), *absent) if self._heard else ()
            self._known = frozenset(self._workers)
        return self._workers

    def _set(self, workers: tuple[int, ...]) -> None:
        if workers != self._workers:
            self._workers, self._known = workers, frozenset(workers)
            self._heard = dict.fromkeys(worker for worker in workers if worker >= 0)

    def snapshot(self) -> list[int]:
        """The numbers."""
        return list(self._workers)

    def restore(self, workers: Sequence[int]) -> None:
        """Replace the numbers by those of a snapshot."""
        if len(set(workers)) != len(workers):
            raise ValueError("the numbers of workers are not different ones")
        self._set(tuple(workers))
