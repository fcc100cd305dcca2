"""Who comes and goes when is read as it is written, and what makes no sense is refused with what is wrong about it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_experiments.laboratory.membership import Change, parse_membership


def left(seconds: float, *workers: int) -> list[Change]:
    return [Change(seconds, True, worker) for worker in workers]


def back(seconds: float, *workers: int) -> list[Change]:
    return [Change(seconds, False, worker) for worker in workers]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" ", []),
        ("0-3@160", left(160, 0, 1, 2, 3)),
        ("0-3@160-300, 8@50", left(50, 8) + left(160, 0, 1, 2, 3) + back(300, 0, 1, 2, 3)),
        ("2@0-0.5,2@1.25-2", left(0, 2) + back(0.5, 2) + left(1.25, 2) + back(2, 2)),
        ("9-9@7", left(7, 9)),
        ("0-4@0-5, 5-9@5", left(0, 0, 1, 2, 3, 4) + back(5, 0, 1, 2, 3, 4) + left(5, 5, 6, 7, 8, 9)),
        ("1@3-4, 1@4-5", left(3, 1) + back(4, 1) + left(4, 1) + back(5, 1)),
    ],
)
def test_changes_are_read_in_order(text: str, expected: list[Change]) -> None:
    assert parse_membership(text, 10) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0-3", "'0-3' needs workers and the seconds in which they are away, such as 0-3@160 or"),
        ("@160", "'@160' needs workers"),
        ("0@", "'0@' needs workers"),
        ("0@-5", "'0@-5' needs workers"),
        ("0@5-", "'0@5-' needs workers"),
        ("0@1e3", "'0@1e3' needs workers"),
        ("all@5", "'all@5' needs workers"),
        ("0@5,", "'' needs workers"),
        ("0@5; 1@5", "'0@5; 1@5' needs workers"),
        ("3-1@5", "'3-1@5' needs a last worker that is not before the first"),
        ("1@5, 2-10@5", "'2-10@5' needs workers from 0 to 9"),
        ("10@5", "'10@5' needs workers from 0 to 9"),
        ("0@5-5", "'0@5-5' needs workers to come back after they have left"),
        ("0@5-4", "'0@5-4' needs workers to come back after they have left"),
        ("0@5-9, 0-1@7-8", "lets worker 0 leave at 7 s, when it is away already"),
        ("0@5, 0@7", "lets worker 0 leave at 7 s, when it is away already"),
        ("0@5, 0@5-7", "lets worker 0 leave at 5 s, when it is away already"),
        ("0-9@5", "lets all workers be away at 5 s"),
        ("0-8@0, 9@2.5-3", "lets all workers be away at 2.5 s"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^the membership {complaint}"):
        parse_membership(text, 10)


spans = st.lists(st.integers(0, 50), unique=True, max_size=6).map(sorted)


@given(st.lists(spans, min_size=1, max_size=5))
def test_workers_are_away_when_it_is_written_so(times: list[list[int]]) -> None:
    """Each leaves and comes back in turn at its times; a further worker stays, so that nobody is missed."""
    text = ", ".join(
        f"{worker}@{'-'.join(map(str, its[i : i + 2]))}"
        for worker, its in enumerate(times)
        for i in range(0, len(its), 2)
    )
    changes = parse_membership(text, len(times) + 1)
    assert changes == sorted(changes)
    for worker, its in enumerate(times):
        found = [(change.seconds, change.leaves) for change in changes if change.worker == worker]
        assert found == [(seconds, i % 2 == 0) for i, seconds in enumerate(its)]
