"""How policies compare, on results that are made by hand."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from dbw_experiments.laboratory.analysis.comparison import BEST, Comparison
from dbw_experiments.laboratory.runs import Outcome, Record
from dbw_experiments.laboratory.scenario import Case, Compared, Scenario

TIMES: dict[str, Sequence[float | None]] = {
    "dbw": [40.0, 60.0, 50.0],
    "dbw-plus": [10.0, 20.0, None],
    "static:1": [None, None, 8.0],
    "static:2": [30.0, 25.0, 35.0],
    "static:3": [31.0, 31.0, 1.0],
}


def scenario() -> Scenario:
    names = dict.fromkeys(policy.partition(":")[0] for policy in TIMES)
    compare = [Compared(name, k=[1, 2, 3] if name == "static" else None) for name in names]
    case = Case(
        name="one",
        model="mlp",
        dataset="digits",
        workers=3,
        batch=8,
        delay="exp:1",
        rate=0.1,
        seeds=3,
        target_loss=0.5,
        compare=compare,
    )
    return Scenario(name="test", title="", figure="", plot="speeds", folder=Path(), cases=[case])


@pytest.fixture
def comparison() -> Comparison:
    records = [
        Record(run, Outcome(reached=TIMES[run.policy][run.seed], iterations=100, gradients=1, seconds=99.0, loss=0.1))
        for run in scenario().runs()
    ]
    return Comparison(scenario(), records)


def test_the_best_static_k_has_the_least_median(comparison: Comparison) -> None:
    assert comparison.best_k("one") == 2
    assert comparison.times("one", BEST).seconds == [30.0, 25.0, 35.0]


def test_speed_ups_are_ratios_of_medians(comparison: Comparison) -> None:
    assert comparison.speed_up("one", "dbw-plus", "dbw") == 2.5
    assert comparison.speed_up("one", "dbw-plus", BEST) == 1.5
    assert comparison.speed_up("one", "dbw-plus", "dbw", BEST) == 1.5
    assert comparison.mean_speed_up("dbw-plus", "dbw") == pytest.approx(2.5)
    assert comparison.speed_up("one", "static:1", "dbw") == 0.0


def test_speeds_are_those_of_the_slowest_the_median_and_the_fastest_seed(comparison: Comparison) -> None:
    assert comparison.speeds("one", "dbw") == (0.5, 0.6, 0.75)
    assert comparison.speeds("one", "dbw-plus") == (0.0, 1.5, 3.0)  # one seed never reached the target
    assert comparison.speeds("one", "adasync") is None


def test_iterations_are_known_where_all_seeds_reached_the_target(comparison: Comparison) -> None:
    assert comparison.iterations("one", 2) == pytest.approx(100)
    assert math.isnan(comparison.iterations("one", 1))
    assert math.isnan(comparison.iterations("one", 7))


def test_without_results_nothing_is_known() -> None:
    empty = Comparison(scenario(), [])
    assert empty.best_k("one") is None
    assert empty.times("one", BEST).runs == 0
    assert empty.speeds("one", "dbw") is None
    assert math.isnan(empty.speed_up("one", "dbw-plus", BEST))
    assert empty.speed_ups("dbw-plus", BEST) == []
