"""Delays that are injected in workers to study stragglers, named on the command line.

A delay is a distribution, or a trace, times any number of factors, in one small language: `shifted-exp:0.3,0.7`, or
`exp:1 * slowdown:5,from=160,workers=0-3+7 * factors:1,1,2`. DISTRIBUTIONS and FACTORS list all of it.
"""

import csv
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from numpy.random import Generator

from dbw_runtime.parameters import split_parameters

LONGEST = 1e9  # seconds, 31 years: a longer delay is cut to it, because timers refuse it and clocks lose their digits


class Form(NamedTuple):
    """One word of the language. The example is its grammar: its values, then its keys, which may be left out."""

    needs: str
    example: str
    draw: Callable[..., float] | None = None  # seconds, of a generator and the values


DISTRIBUTIONS = {
    "none": Form("nothing after it", "none", lambda _: 0.0),
    "constant": Form("1 number, SECONDS", "constant:0.5", lambda _, seconds: seconds),
    "uniform": Form("2 numbers, LOW,HIGH", "uniform:0.1,0.9", lambda rng, low, high: low + (high - low) * rng.random()),
    "exp": Form("1 number, MEAN", "exp:0.7", lambda rng, mean: mean * rng.standard_exponential()),
    "shifted-exp": Form(
        "2 numbers, SHIFT,MEAN",
        "shifted-exp:0.3,0.7",
        lambda rng, shift, mean: shift + mean * rng.standard_exponential(),
    ),
    "pareto": Form("2 numbers, SHAPE,LEAST", "pareto:2.5,0.1", lambda rng, shape, low: low * (1 + rng.pareto(shape))),
    "trace": Form("a file", "trace:FILE.csv,scale=0.05"),  # the rows step,worker,seconds of a CSV file, over and over
}
FACTORS = {
    "slowdown": Form("1 number, FACTOR", "slowdown:5,from=160,until=300,workers=0-3+7"),  # by default always, for all
    "factors": Form("1 number or more", "factors:1,1,2,4"),  # one for each worker, repeated for further workers
}
FORMS = "{}, then any number of factors: {}".format(
    " or ".join(form.example for form in DISTRIBUTIONS.values()),
    " or ".join(f"* {form.example}" for form in FACTORS.values()),
)


@dataclass(frozen=True)
class _Drawn:
    """Seconds that are drawn again each time."""

    name: str
    numbers: tuple[float, ...]

    def __call__(self, _worker: int, _step: int, _now: float, random: Generator) -> float:
        draw = DISTRIBUTIONS[self.name].draw
        assert draw is not None, "a trace is replayed"
        return draw(random, *self.numbers)


@dataclass(frozen=True)
class _Replayed:
    """Seconds that were measured: each worker replays a column."""

    scale: float
    columns: tuple[tuple[float, ...], ...] = field(repr=False)

    def __call__(self, worker: int, step: int, _now: float, _random: Generator) -> float:
        column = self.columns[worker % len(self.columns)]
        return self.scale * column[step % len(column)]


@dataclass(frozen=True)
class _Factor:
    """What seconds are multiplied with at start ≤ now < until, for workers in these ranges, or for all without any."""

    factors: tuple[float, ...]
    start: float
    until: float
    workers: tuple[range, ...]

    def __call__(self, worker: int, _step: int, now: float, _random: Generator) -> float:
        if self.start <= now < self.until and (not self.workers or any(worker in some for some in self.workers)):
            return self.factors[worker % len(self.factors)]
        return 1.0


_Term = _Drawn | _Replayed | _Factor


@dataclass(frozen=True)
class Delay:
    """How long workers are held up: a product of terms. Its `str` is the text that it was parsed from."""

    text: str = field(compare=False)
    terms: tuple[_Term, ...]

    def seconds(self, worker: int, step: int, now: float, random: Generator) -> float:
        """From 0 to LONGEST, for a worker's gradient of version `step`, `now` seconds after it began."""
        seconds = 1.0
        for term in self.terms:
            seconds = min(seconds * term(worker, step, now, random), LONGEST)
        return seconds

    def __str__(self) -> str:
        return self.text


def parse_delay(text: str, folder: Path = Path()) -> Delay:
    """Read a delay, and the file of its trace, which is in a folder. ValueError says what is wrong in a sentence."""
    terms: list[_Term] = []
    for part in map(str.strip, text.split("*")):
        try:
            terms.append(_term(part, FACTORS if terms else DISTRIBUTIONS, folder))
        except ValueError as error:
            raise ValueError(f"the {'factor' if terms else 'delay'} {part!r} {error}") from error
    return Delay(text, tuple(terms))


def _term(text: str, forms: Mapping[str, Form], folder: Path) -> _Term:
    name, values, keys = _split(text, forms)
    if name == "trace":
        return _Replayed(_number(keys.get("scale", "1")), _columns(folder / values[0]))
    numbers = tuple(map(_number, values))
    if name in FACTORS:
        start, until = _number(keys.get("from", "0")), _number(keys["until"]) if "until" in keys else math.inf
        if until <= start:
            raise ValueError("needs an until that is after its from")
        return _Factor(numbers, start, until, _ranges(keys["workers"]) if "workers" in keys else ())
    if name == "uniform" and numbers[0] > numbers[1]:
        raise ValueError("needs a HIGH that is not below LOW")
    if name == "pareto" and not all(numbers):
        raise ValueError("needs SHAPE and LEAST above 0")
    return _Drawn(name, numbers)


def _split(text: str, forms: Mapping[str, Form]) -> tuple[str, list[str], dict[str, str]]:
    """Take a text apart that is written like one of the examples: its name, values and keys."""
    name, parts = split_parameters(text)
    name = name.lower()
    if name not in forms:
        raise ValueError(f"needs to begin with one of {', '.join(forms)}")
    needs, example, _ = forms[name]
    known = re.findall(r"(\w+)=", example)
    count = max(len(parts), 1) if name == "factors" else len(re.findall("[:,]", example)) - len(known)
    if len(parts) < count or (len(parts) > count and not known):
        raise ValueError(f"needs {needs}, such as {example}")
    keys: dict[str, str] = {}
    for part in parts[count:]:
        if part.key is None or part.key not in known or part.key in keys:
            raise ValueError(f"needs one of {', '.join(known)}, each once, instead of {str(part)!r}, such as {example}")
        keys[part.key] = part.value
    return name, [str(part) for part in parts[:count]], keys  # the name of a file may have a =


def _number(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) <= LONGEST:
            return float(text)
    raise ValueError(f"needs a number from 0 to {LONGEST:g} instead of {text!r}")


def _ranges(text: str) -> tuple[range, ...]:
    matches = [re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip()) for part in text.split("+")]
    ranges = tuple(range(int(match[1]), int(match[2] or match[1]) + 1) for match in matches if match)
    if len(ranges) < len(matches) or not all(ranges):
        raise ValueError(f"needs workers such as 0-3+7 instead of {text!r}")
    return ranges


def _columns(file: Path) -> tuple[tuple[float, ...], ...]:
    """Read the seconds of each worker, in the order of workers and steps."""
    try:
        rows = list(csv.reader(file.read_text("utf-8-sig").rstrip().splitlines()))
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"needs a CSV file that can be read: {error}") from error
    if rows[:1] != [["step", "worker", "seconds"]] or len(rows) == 1:
        raise ValueError("needs a CSV file with the header step,worker,seconds and at least one row")
    columns: dict[int, dict[int, float]] = {}
    for line, row in enumerate(rows[1:], 2):
        try:
            step, worker, seconds = row
            column = columns.setdefault(int(worker), {})
            if int(step) in column or min(int(step), int(worker)) < 0:
                raise ValueError
            column[int(step)] = _number(seconds)
        except ValueError:
            wrong = f"line {line} is {','.join(row)!r}"
            raise ValueError(f"needs rows such as 16,0,5.6, no two for the same step and worker; {wrong}") from None
    return tuple(tuple(seconds for _, seconds in sorted(column.items())) for _, column in sorted(columns.items()))
