"""The language in which policies, optimisers, schedules and delays are named: `NAME`, `NAME:8`, `NAME:key=value,…`."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

PLUGIN = re.compile(r"(.+?:\s*[^\W\d]\w*\s*)(?::(.*))?", re.DOTALL)  # module:Class or file.py:Class, then parameters


class Parameter(NamedTuple):
    """A value, and its key if it was given with one. Its `str` is how it is written."""

    key: str | None
    value: str

    def __str__(self) -> str:
        return self.value if self.key is None else f"{self.key}={self.value}"


def split_parameters(text: str, plugins: bool = False) -> tuple[str, list[Parameter]]:
    """Split a text into its name and its parameters; spaces around each part do not matter.

    With `plugins`, a first part that is an identifier belongs to the name: `rules.py:Patient:alpha=0.3` is the class
    Patient with a parameter, but `static:8` is a name with a value. Names, keys and values may be empty: which ones
    there are, and what they mean, is up to the caller.
    """
    plugin = PLUGIN.fullmatch(text) if plugins else None
    name, rest = plugin.groups(default="") if plugin else text.partition(":")[::2]
    parameters = [_parameter(part) for part in rest.split(",")] if rest.strip() else []
    return ":".join(part.strip() for part in name.rsplit(":", 1)), parameters


def _parameter(text: str) -> Parameter:
    key, equals, value = (part.strip() for part in text.partition("="))
    return Parameter(key, value) if equals else Parameter(None, key)


def numbers_by_key(parameters: Iterable[Parameter], keys: Sequence[str]) -> dict[str, float]:
    """Numbers by their keys. The first value may be given without its key, which is the first of `keys` then.

    ValueError says what is wrong in a sentence.
    """
    expected = f"key=value with a key out of {', '.join(keys)}" if keys else "left out: there are no parameters"
    numbers: dict[str, float] = {}
    for i, parameter in enumerate(parameters):
        key = next(iter(keys), None) if parameter.key is None and i == 0 else parameter.key
        if key is None or key not in keys:
            raise ValueError(f"{str(parameter)!r} must be {expected}")
        if key in numbers:
            raise ValueError(f"{key} is given twice")
        try:
            numbers[key] = float(parameter.value)
        except ValueError:
            raise ValueError(f"{key} is {parameter.value!r}; it must be a number") from None
    return numbers
