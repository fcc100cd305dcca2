"""Results that are kept as lines survive what may happen to a file."""

from itertools import permutations
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dbw_experiments.laboratory.results import Results
from dbw_experiments.laboratory.runs import Outcome, Record, Run

RUN = Run(model="mlp", dataset="digits", workers=4, batch=8, policy="dbw", rate=0.1, delay="exp:1", seed=0)
OUTCOME = Outcome(
    reached=None,
    iterations=2,
    gradients=5,
    seconds=3.5,
    loss=None,
    columns={"k": [4.0, 1.0], "loss": [2.25, None], "estimated_durations": [[None, None], [0.5, 1.5]]},
)
RECORDS = [Record(replace(RUN, seed=seed), replace(OUTCOME, seconds=seed + 0.1)) for seed in range(4)]
RUNS = [record.run for record in RECORDS]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The place of results, in a folder that is not there yet."""
    return tmp_path / "scenario" / "runs.jsonl"


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_nothing_is_known_at_first(path: Path) -> None:
    results = Results(path)
    assert results.of(RUNS) == []
    assert results.missing(RUNS) == RUNS
    assert not path.exists()


def test_what_was_added_is_read_back(path: Path) -> None:
    results = Results(path)
    results.add(RECORDS[:2])
    for known in (results, Results(path)):
        assert known.of(RUNS) == RECORDS[:2]
        assert known.missing(RUNS) == RUNS[2:]


def test_results_are_told_in_the_order_in_which_they_are_asked_for(path: Path) -> None:
    Results(path).add(reversed(RECORDS))
    assert Results(path).of(RUNS[::-1]) == RECORDS[::-1]
    assert Results(path).of(RUNS) == RECORDS


finite = st.floats(allow_nan=False, allow_infinity=False)
records = st.builds(
    Record,
    st.builds(
        Run,
        case=st.text(),
        policy=st.text(),
        rate=finite,
        seed=st.integers(0, 2**63 - 1),
        split=st.booleans(),
        target_loss=st.none() | finite,
        seconds=st.none() | finite,
    ),
    st.builds(
        Outcome,
        reached=st.none() | finite,
        seconds=finite,
        loss=st.none() | finite,
        columns=st.dictionaries(st.text(), st.lists(st.none() | finite | st.lists(st.none() | finite))),
    ),
)


@given(records)
def test_a_record_is_the_same_after_it_was_written_and_read(record: Record) -> None:
    text = msgspec.json.encode(record)
    assert b"\n" not in text
    again = msgspec.json.decode(text, type=Record)
    assert again == record
    assert hash(again.run) == hash(record.run)


def test_a_run_is_another_if_anything_about_it_is(path: Path) -> None:
    Results(path).add(RECORDS[:1])
    others = [replace(RUN, rate=0.2), replace(RUN, case="a"), replace(RUN, rule="knee"), replace(RUN, split=True)]
    assert Results(path).missing([RUN, *others]) == others


def test_results_are_appended_to_what_is_there(path: Path) -> None:
    for record in RECORDS:
        Results(path).add([record])
    assert lines(path) == [msgspec.json.encode(record) + b"\n" for record in RECORDS]


def test_results_are_in_the_file_as_soon_as_they_are_added(path: Path) -> None:
    results = Results(path)
    for i, record in enumerate(RECORDS):
        results.add([record])
        assert len(lines(path)) == i + 1


def test_the_newest_outcome_of_a_run_counts(path: Path) -> None:
    Results(path).add(RECORDS)
    newer = Record(RUN, replace(OUTCOME, seconds=99.0))
    Results(path).add([newer])
    assert Results(path).of([RUN]) == [newer]


def test_a_torn_line_is_ignored_and_does_not_damage_what_comes_after_it(path: Path) -> None:
    """Wherever it was torn; a line that lacks nothing but its end is as good as torn, but may also be taken."""
    Results(path).add(RECORDS[:2])
    whole = path.read_bytes()
    first = len(lines(path)[0])
    for end in [first, first + 1, *range(first + 2, len(whole) - 2, 17), len(whole) - 2, len(whole) - 1]:
        path.write_bytes(whole[:end])
        results = Results(path)
        assert results.of(RUNS[:1]) == RECORDS[:1]
        assert RUNS[1] in results.missing(RUNS) or end == len(whole) - 1
        results.add(RECORDS[2:3])
        results.add(RECORDS[3:])
        assert Results(path).of(RUNS[2:]) == RECORDS[2:]
        assert Results(path).of(RUNS[:1]) == RECORDS[:1]
        assert len(lines(path)) == (3 if end == first else 4)  # no line but the torn one is added


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"{}",
        b"\xff\x00",
        b'{"run":{"model":"mlp"},"outcome":{}}',
        b"[1]",
        b'{"run":3,"outcome":4}',
        msgspec.json.encode(RECORDS[1]).replace(b'"mlp"', b'"\xff"'),
        msgspec.json.encode(RECORDS[1]).replace(b'"seed":1', b'"seed":1,"momentum":0.9'),  # of a later version
    ],
)
def test_lines_that_are_not_understood_are_ignored(path: Path, line: bytes) -> None:
    Results(path).add(RECORDS[:1])
    path.write_bytes(line + b"\n" + path.read_bytes() + line + b"\n")
    results = Results(path)
    assert results.of(RUNS) == RECORDS[:1]
    results.add(RECORDS[1:])
    assert Results(path).of(RUNS) == RECORDS


def test_a_tidy_file_is_the_same_in_whatever_order_it_came_about(path: Path) -> None:
    expected = b"".join(msgspec.json.encode(record) + b"\n" for record in RECORDS)
    for order in permutations(RECORDS):
        path.unlink(missing_ok=True)
        Results(path).add(order[:2])
        results = Results(path)
        results.add(order[2:])
        results.tidy(RUNS)
        assert path.read_bytes() == expected
        assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_tidying_puts_first_what_is_asked_for_loses_nothing_and_can_be_repeated(path: Path) -> None:
    results = Results(path)
    results.add([*RECORDS, *RECORDS])
    path.write_bytes(path.read_bytes() + b"torn")
    for _ in range(2):
        Results(path).tidy(RUNS[1:3])
        expected = [*RECORDS[1:3], RECORDS[0], RECORDS[3]]
        assert lines(path) == [msgspec.json.encode(record) + b"\n" for record in expected]


def test_results_can_be_added_after_tidying(path: Path) -> None:
    results = Results(path)
    results.add(RECORDS[:2])
    results.tidy(RUNS)
    results.add(RECORDS[2:])
    assert Results(path).of(RUNS) == RECORDS


def test_a_tidy_file_is_the_same_if_it_was_interrupted(path: Path) -> None:
    """Columns as a run has them: k is an integer there."""
    fresh = [Record(record.run, replace(OUTCOME, columns={"k": [4, 1]})) for record in RECORDS]
    results = Results(path)
    results.add(fresh)
    results.tidy(RUNS)
    at_once = path.read_bytes()
    Results(path).tidy(RUNS)
    assert path.read_bytes() == at_once
