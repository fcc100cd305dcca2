"""Workers that come and go on the virtual clock.

Who is away when is given in one small language: `0-3@160` lets workers 0 to 3 leave at 160 s for good; in
`0-3@160-300, 8@50` they come back at 300 s, and worker 8 leaves at 50 s.
"""

import re
from typing import NamedTuple

SECONDS = r"(\d{1,9}(?:\.\d+)?)"
AWAY = re.compile(rf"(\d{{1,9}})(?:-(\d{{1,9}}))?@{SECONDS}(?:-{SECONDS})?")


class Change(NamedTuple):
    """A worker comes or goes."""

    seconds: float  # when
    leaves: bool  # of one instant, those that come are first: so somebody is always there
    worker: int


def parse_membership(text: str, workers: int) -> list[Change]:
    """Read who comes and goes when, in order. ValueError says what is wrong in a sentence."""
    changes: list[Change] = []
    for part in map(str.strip, text.split(",") if text.strip() else []):
        try:
            changes += _changes(part, workers)
        except ValueError as error:
            raise ValueError(f"the membership {part!r} {error}") from error
    changes.sort()
    _check(changes, workers)
    return changes


def _changes(text: str, workers: int) -> list[Change]:
    match = AWAY.fullmatch(text)
    if match is None:
        raise ValueError("needs workers and the seconds in which they are away, such as 0-3@160 or 0-3@160-300")
    first, last, start, until = match.groups()
    who = range(int(first), int(last or first) + 1)
    if not who:
        raise ValueError("needs a last worker that is not before the first")
    if who[-1] >= workers:
        raise ValueError(f"needs workers from 0 to {workers - 1}: there are no others")
    if until is not None and float(until) <= float(start):
        raise ValueError("needs workers to come back after they have left")
    left = [Change(float(start), True, worker) for worker in who]
    return left if until is None else left + [Change(float(until), False, worker) for worker in who]


def _check(changes: list[Change], workers: int) -> None:
    away: set[int] = set()
    for seconds, leaves, worker in changes:
        if leaves and worker in away:
            raise ValueError(f"the membership lets worker {worker} leave at {seconds:g} s, when it is away already")
        away ^= {worker}
        if len(away) == workers:
            raise ValueError(f"the membership lets all workers be away at {seconds:g} s; one needs to stay")
