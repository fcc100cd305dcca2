"""Plain data, as states are made of: numbers, text, bytes, lists and dictionaries.

The readers refuse what is not of the expected kind, because a state may come from anywhere.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dbw_controller.core.kernels import Array

T = TypeVar("T")


def integer(value: Any, least: int = 0, most: int = 2**64) -> int:  # noqa: ANN401
    """A number that counts something."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r} is no integer between {least} and {most}")
    return value


def real(value: Any) -> float:  # noqa: ANN401
    """A finite number."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def column(value: Any, most: float) -> Array:  # noqa: ANN401
    """An array of numbers from 0 on, from bytes."""
    numbers = unpacked(value)
    if not ((numbers >= 0) & (numbers <= most)).all():
        raise ValueError(f"a column has numbers that are not between 0 and {most}")
    return numbers


def unpacked(value: Any) -> Array:  # noqa: ANN401
    """An array of any numbers, from bytes."""
    return np.frombuffer(value, "<f8").astype(float)


def packed(array: Array) -> bytes:
    """An array as bytes."""
    return array.astype("<f8").tobytes()


def optional(read: Callable[[Any], T], value: Any) -> T | None:  # noqa: ANN401
    """Something or nothing."""
    return None if value is None else read(value)


def or_none(value: float) -> float | None:
    """A number that may be infinite, which plain data cannot be."""
    return value if math.isfinite(value) else None


def or_infinite(value: Any) -> float:  # noqa: ANN401
    """What `or_none` was made of."""
    return math.inf if value is None else real(value)
