import json
import math
from collections.abc import Callable
from typing import Literal

import pytest

from benchmarks.__main__ import split_output
from benchmarks._harness import Bar, Report, Spread, interleave, ratio, run


@pytest.mark.parametrize(
    ("value", "op", "bar", "holds"),
    [(1, "<=", 1, True), (1.1, "<=", 1, False), (1, ">=", 1, True), (0.9, ">=", 1, False), (math.nan, "<=", 1, False)],
)
def test_a_bar_holds_up_to_its_limit(value: float, op: Literal["<=", ">="], bar: float, holds: bool) -> None:
    assert Bar("speed", value, op, bar).holds is holds


def test_candidates_take_turns() -> None:
    calls: list[str] = []

    def candidate(name: str) -> Callable[[], None]:
        return lambda: calls.append(name)

    seconds = interleave({"a": candidate("a"), "b": candidate("b")}, repetitions=3, calls=2)
    assert calls == ["a", "a", "b", "b"] * 3
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}


def test_a_ratio_compares_within_each_repetition() -> None:
    # the machine was twice as slow in the second repetition, for both: their ratio did not change
    assert ratio([2.0, 4.0, 2.0], [1.0, 2.0, 1.0]) == Spread(2.0, 2.0, 2.0, "×")


def test_a_spread_is_a_median_and_quartiles() -> None:
    assert Spread.of([5, 1, 2, 4, 3], "µs") == Spread(3, 2, 4, "µs")
    assert Spread.of([7], "µs") == Spread(7, 7, 7, "µs")


def test_the_last_line_is_the_report_and_a_missed_bar_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report({"a / b": Spread(2.0, 1.5, 2.5, "×")}, [Bar("a / b", 2.0, "<=", 1.25)])
    monkeypatch.setattr("sys.argv", ["benchmark", "--json"])
    run("example", lambda: report, None)
    *readable, last = capsys.readouterr().out.splitlines()
    assert json.loads(last) == {
        "benchmark": "example",
        "results": {"a / b": {"median": 2.0, "low": 1.5, "high": 2.5, "unit": "×"}},
        "bars": [{"name": "a / b", "value": 2.0, "op": "<=", "bar": 1.25, "holds": False}],
    }
    assert "example    a / b  2         <= 1.25  NO" in readable


def test_the_overview_takes_the_bars_from_the_last_line() -> None:
    report = Report(bars=[Bar("a / b", 2.0, "<=", 1.25)])
    assert split_output(f"a\nb\n{json.dumps(report.as_json('example'))}\n") == ("a\nb", report.bars)


@pytest.mark.parametrize("output", ["", "it broke\n", "it broke\n7\n", 'it broke\n{"bars": 7}\n'])
def test_the_overview_shows_all_output_of_a_benchmark_without_a_report(output: str) -> None:
    assert split_output(output) == (output, None)
