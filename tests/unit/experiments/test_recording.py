import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dbw.v1.iteration_pb2 import Decision, Estimates
from dbw_experiments.demo.recording import Expectation, Recorder, Tail, expectation
from dbw_experiments.demo.runs import Run

NOBODY = "127.0.0.1:1"  # no controller: its expectations are missing, and nothing else


def entry(iteration: int, arrivals: list[tuple[int, int, float]]) -> dict[str, Any]:
    """An iteration of one second that waited for two gradients: what a parameter server logs of it."""
    keys = ("iteration", "worker", "seconds")
    return {
        "iteration": iteration,
        "k": 2,
        "duration_seconds": 1.0,
        "published_seconds": 1.5 * iteration,
        "loss": 2.0 - iteration,
        "arrivals": [dict(zip(keys, arrival, strict=True)) for arrival in arrivals],
    }


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with Recorder(Run("dbw", 3, 0.2), tmp_path / "log.jsonl", NOBODY, "job") as recorder:
        yield recorder


def test_a_late_gradient_belongs_to_its_iteration_and_came_when_it_came(recorder: Recorder, tmp_path: Path) -> None:
    first = entry(0, [(0, 1, 0.5), (0, 2, 1.0), (0, 0, 1.25)])  # the last one while the first two were averaged
    second = entry(1, [(1, 1, 0.5), (0, 0, 2.0), (1, 2, 1.0)])
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (first, second)))
    run = recorder.run()
    assert [(a.iteration, a.worker, a.time, a.is_late) for a in run.arrivals] == [
        (0, 1, 0.5, False),
        (0, 2, 1.0, False),
        (0, 0, 1.25, True),
        (1, 1, 2.0, False),
        (0, 0, 2.0, True),
        (1, 2, 2.5, False),
    ]
    assert [(i.number, i.begin, i.k, i.loss, i.estimated) for i in run.iterations] == [
        (0, 0.0, 2, 2.0, None),
        (1, 1.5, 2, 1.0, None),
    ]
    assert (run.seconds, run.mean_k, run.loss, run.reached) == (2.5, 2.0, 1.5, False)
    assert (dict(run.sent), dict(run.late)) == ({0: 2, 1: 2, 2: 2}, {0: 2})


def test_a_log_is_followed_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tail = Tail(path)
    assert list(tail.entries()) == [], "it is not there yet"
    path.write_text('{"iteration":0}\n{"iterat')
    assert [found["iteration"] for found in tail.entries()] == [0]
    assert list(tail.entries()) == []
    with path.open("a") as file:
        file.write('ion":1}\n{"iteration":2}\n')
    assert [found["iteration"] for found in tail.entries()] == [1, 2]


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (Decision(k=2, estimates=Estimates(durations_seconds=[1, 2, 3], explanation="why")), Expectation(2.0, "why")),
        (Decision(k=2), Expectation(None, "")),
        (Decision(k=2, estimates=Estimates(durations_seconds=[1, float("inf")])), Expectation(None, "")),
    ],
)
def test_an_expectation_is_that_of_the_k_that_was_chosen(decision: Decision, expected: Expectation) -> None:
    assert expectation(decision) == expected
