"""What every benchmark shares: interleaved timing, medians with their spread, bars, and the report.

A benchmark is a module with a `main()` that calls `run(NAME, measure)`, where `measure()` returns a `Report`. A missed
bar is reported, and is not an error: the machine decides how fast a program is, not the program alone.
"""

import argparse
import json
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Literal, Self

COMPARE = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True)
class Spread:
    """A measured quantity: the median of its repetitions, and the quartiles that half of them lie between."""

    median: float
    low: float
    high: float
    unit: str

    @classmethod
    def of(cls, values: Sequence[float], unit: str) -> Self:
        """Summarise the repetitions of one measurement."""
        low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
        return cls(middle, low, high, unit)

    def __str__(self) -> str:
        return f"{self.median:.4g} {self.unit} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class Bar:
    """What a value should be: at most or at least the bar."""

    name: str
    value: float
    op: Literal["<=", ">="]
    bar: float

    @property
    def holds(self) -> bool:
        """Whether the bar is met; never for a value that is not a number."""
        return bool(COMPARE[self.op](self.value, self.bar))

    def as_json(self) -> dict[str, Any]:
        """The bar as benchmarks print it with --json."""
        return {"name": self.name, "value": self.value, "op": self.op, "bar": self.bar, "holds": self.holds}


@dataclass
class Report:
    """What a benchmark found."""

    results: dict[str, Spread] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)

    def as_json(self, benchmark: str) -> dict[str, Any]:
        """The report as benchmarks print it with --json."""
        results = {name: vars(spread) for name, spread in self.results.items()}
        return {"benchmark": benchmark, "results": results, "bars": [bar.as_json() for bar in self.bars]}


def interleave(candidates: Mapping[str, Callable[[], object]], repetitions: int, calls: int) -> dict[str, list[float]]:
    """Time candidates in turn, so that a change in the machine's mood meets all of them alike.

    Returns, for each candidate, one number a repetition: the median seconds of its `calls` calls.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repetitions):
        for name, candidate in candidates.items():
            durations = []
            for _ in range(calls):
                begin = time.perf_counter()
                candidate()
                durations.append(time.perf_counter() - begin)
            seconds[name].append(median(durations))
    return seconds


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Spread:
    """How many times larger one candidate's seconds are than another's, repetition by repetition."""
    return Spread.of([a / b for a, b in zip(numerator, denominator, strict=True)], "×")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out in columns of equal width."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["─" * width for width in widths], *rows]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def bar_table(bars: Sequence[tuple[str, Bar]]) -> str:
    """One line a bar, each with the benchmark it belongs to."""
    rows = [(where, b.name, f"{b.value:.4g}", f"{b.op} {b.bar:g}", "yes" if b.holds else "NO") for where, b in bars]
    return table(("benchmark", "what", "measured", "bar", "holds"), rows)


def run(benchmark: str, measure: Callable[[], Report], description: str | None) -> None:
    """Parse the command line of a benchmark, run it, and print what it found."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{benchmark}", description=description)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object on the last line")
    arguments = parser.parse_args()
    report = measure()
    print(table(("measured", "median (quartiles)"), [(k, str(v)) for k, v in report.results.items()]))
    if report.bars:
        print(f"\n{bar_table([(benchmark, bar) for bar in report.bars])}")
    if arguments.json:
        print(json.dumps(report.as_json(benchmark)))
