"""Round trips of training logs that are worked out by hand, and of simulated ones, whose delays are known."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_experiments.laboratory.cluster import Cluster
from dbw_experiments.laboratory.trace import round_trips, write_trace
from dbw_runtime.configuration import UsageError
from dbw_worker.delays import parse_delay
from dbw_worker.randomness import draws_of

Entry = dict[str, Any]
ANY = np.random.default_rng(0)


def entry(iteration: int, published: float, *arrivals: tuple[int, int, float]) -> Entry:
    """What a parameter server logs, with arrivals as iteration, worker and seconds."""
    named = [dict(zip(("iteration", "worker", "seconds"), arrival, strict=True)) for arrival in arrivals]
    return {"iteration": iteration, "published_seconds": published, "arrivals": named}


def log_of(folder: Path, *entries: Entry) -> Path:
    path = folder / "training.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_who_begins_when_parameters_are_published_takes_as_long_as_its_gradient_is_away() -> None:
    """Two workers, k = 2: both are idle when the next parameters come."""
    entries = [
        entry(0, 0.5, (0, 0, 1.0), (0, 1, 2.0)),
        entry(1, 2.5, (1, 1, 0.25), (1, 0, 4.0)),
    ]
    assert list(round_trips(entries)) == [(0, 1.0), (1, 2.0), (1, 0.25), (0, 4.0)]


def test_who_is_late_begins_its_next_gradient_when_the_late_one_is_done() -> None:
    """Two workers, k = 1.

    | t    | event                                                                                     |
    |------|-------------------------------------------------------------------------------------------|
    | 0    | version 0: both begin                                                                     |
    | 1    | worker 0 after 1 s; version 1: worker 0 begins                                            |
    | 2.5  | worker 1, late for version 0, after 2.5 s; begins with 1                                  |
    | 3    | worker 0 after 2 s; version 2: worker 0 begins                                            |
    | 3.25 | worker 1, late for version 1, 2.25 s after it was published: 0.75 s of work; begins with 2|
    | 3.75 | worker 1, 0.75 s after version 2 was published: 0.5 s of work; version 3: it begins       |
    | 4.75 | worker 1 after 1 s                                                                        |
    """
    entries = [
        entry(0, 0.0, (0, 0, 1.0)),
        entry(1, 1.0, (0, 1, 2.5), (1, 0, 2.0)),
        entry(2, 3.0, (1, 1, 2.25), (2, 1, 0.75)),
        entry(3, 3.75, (3, 1, 1.0)),
    ]
    assert list(round_trips(entries)) == [(0, 1.0), (1, 2.5), (0, 2.0), (1, 0.75), (1, 0.5), (1, 1.0)]


def test_arrivals_of_iterations_that_are_not_in_the_log_say_nothing() -> None:
    """It begins with iteration 7. Worker 1 is late for 6; when it began and was done cannot be known."""
    entries = [entry(7, 10.0, (6, 1, 3.0), (7, 0, 1.0)), entry(8, 11.0, (7, 1, 2.5), (8, 0, 1.0))]
    assert list(round_trips(entries)) == [(0, 1.0), (1, 2.5), (0, 1.0)]


def test_a_clock_that_disagrees_does_not_make_a_round_trip_negative() -> None:
    """By the log, worker 0 was done with version 1 at 3.5, before it was done with version 0, at 4."""
    entries = [entry(0, 0.0, (0, 1, 1.0)), entry(1, 1.0, (0, 0, 4.0), (1, 0, 2.5))]
    assert list(round_trips(entries)) == [(1, 1.0), (0, 4.0), (0, 0.0)]


def test_an_empty_log_has_no_round_trips() -> None:
    assert list(round_trips([])) == []
    assert list(round_trips([entry(0, 0.0)])) == []


DELAYS = ["shifted-exp:0.3,0.7", "exp:1 * factors:1,1,6", "pareto:1.5,0.1", "uniform:0.5,3"]


@given(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), min_size=1, max_size=20))),
    st.sampled_from(DELAYS),
    st.integers(0, 2**32),
)
def test_the_delays_of_a_simulated_training_are_found(training: tuple[int, list[int]], text: str, seed: int) -> None:
    """Gradients take nothing but the delays that were drawn for a worker and a version."""
    workers, ks = training
    delay = parse_delay(text)
    cluster = Cluster(workers, delay, seed)
    iterations = [cluster.iterate(k) for k in ks]
    entries = [entry(i, iteration.published, *iteration.arrivals) for i, iteration in enumerate(iterations)]
    expected = [
        (arrival.worker, delay.seconds(arrival.worker, arrival.iteration, 0, draws_of(seed, *arrival[1::-1])[1]))
        for iteration in iterations
        for arrival in iteration.arrivals
    ]
    found = list(round_trips(entries))
    assert [worker for worker, _ in found] == [worker for worker, _ in expected]
    assert [seconds for _, seconds in found] == pytest.approx([seconds for _, seconds in expected], rel=1e-9, abs=1e-9)


def replayed(trace: Path, worker: int, steps: int) -> list[float]:
    """What a worker is held up by a trace."""
    delay = parse_delay(f"trace:{trace.name}", trace.parent)
    return [delay.seconds(worker, step, 0.0, ANY) for step in range(steps)]


LATE = [  # as above: worker 0 takes 1 and 2 s, worker 1 takes 2.5, 0.75, 0.5 and 1
    entry(0, 0.0, (0, 0, 1.0)),
    entry(1, 1.0, (0, 1, 2.5), (1, 0, 2.0)),
    entry(2, 3.0, (1, 1, 2.25), (2, 1, 0.75)),
    entry(3, 3.75, (3, 1, 1.0)),
]


def test_a_trace_is_what_a_delay_reads(tmp_path: Path) -> None:
    trace = tmp_path / "FILE.csv"
    assert write_trace(log_of(tmp_path, *LATE), trace, None) == 6
    assert trace.read_bytes().splitlines(keepends=True)[:2] == [b"step,worker,seconds\n", b"0,0,1.000000\n"]
    assert replayed(trace, 0, 2) == [1.0, 2.0]
    assert replayed(trace, 1, 4) == [2.5, 0.75, 0.5, 1.0]
    # Over and over, and further workers replay the same columns.
    assert replayed(trace, 0, 3) == [1.0, 2.0, 1.0]
    assert replayed(trace, 2, 2) == replayed(trace, 0, 2)


@pytest.mark.parametrize(
    ("workers", "columns"),
    [
        (1, [[1.0, 2.5, 2.0, 0.75, 0.5, 1.0]]),
        (2, [[1.0, 2.0, 0.5], [2.5, 0.75, 1.0]]),
        (4, [[1.0, 0.5], [2.5, 1.0], [2.0], [0.75]]),
        (7, [[1.0], [2.5], [2.0], [0.75], [0.5], [1.0], [1.0]]),  # the seventh replays the first one's
    ],
)
def test_gradients_are_dealt_out_to_another_number_of_workers(
    tmp_path: Path, workers: int, columns: Sequence[Sequence[float]]
) -> None:
    trace = tmp_path / "trace.csv"
    assert write_trace(log_of(tmp_path, *LATE), trace, workers) == 6
    assert [replayed(trace, worker, len(column)) for worker, column in enumerate(columns)] == columns


def test_a_simulated_training_with_a_trace_gives_this_trace_back(tmp_path: Path) -> None:
    """With k = n nobody is late, and every gradient that began is in the log."""
    seconds = np.random.default_rng(1).exponential(size=(3, 20)).round(6)
    rows = [f"{step},{worker},{seconds[worker, step]:.6f}" for worker in range(3) for step in range(20)]
    (tmp_path / "old.csv").write_text("\n".join(["step,worker,seconds", *rows]) + "\n")
    cluster = Cluster(3, parse_delay("trace:old.csv", tmp_path), 0)
    iterations = [cluster.iterate(3) for _ in range(20)]
    log = log_of(tmp_path, *(entry(i, one.published, *one.arrivals) for i, one in enumerate(iterations)))
    new = tmp_path / "new.csv"
    assert write_trace(log, new, None) == 60
    assert [replayed(new, worker, 20) for worker in range(3)] == [pytest.approx(column) for column in seconds.tolist()]


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    log = log_of(tmp_path, *LATE)
    log.write_bytes(log.read_bytes()[:-1])
    assert write_trace(log, tmp_path / "trace.csv", None) == 5


@pytest.mark.parametrize("content", ["step,worker,seconds\n0,0,1.0\n", '{"k": 3}\n', "[1]\n", '{"iteration": "0"}\n'])
def test_what_is_no_training_log_is_refused(tmp_path: Path, content: str) -> None:
    log, trace = tmp_path / "training.jsonl", tmp_path / "trace.csv"
    log.write_text(content)
    with pytest.raises(
        UsageError, match=f"line 1 of {re.escape(str(log))} is not a JSON object with an integer `iteration`"
    ):
        write_trace(log, trace, None)
    assert not trace.exists()


@pytest.mark.parametrize(("content", "complaint"), [('{"iteration": 0}\n', "published_seconds"), ("", "no gradients")])
def test_a_log_that_does_not_tell_when_gradients_came_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    log, trace = tmp_path / "training.jsonl", tmp_path / "trace.csv"
    log.write_text(content)
    with pytest.raises(UsageError, match=complaint):
        write_trace(log, trace, None)
    assert not trace.exists()
