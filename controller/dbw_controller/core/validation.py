"""Refusal of values that are not allowed, where they come in."""

import math
import operator
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from dbw_controller.core.errors import InvalidValueError

# Which numbers a field may hold: Python's own type for them, the least and the most.
Kind = tuple[type[int] | type[float], float, float]


def require(condition: bool, field: str, value: object, rule: str) -> None:
    """Refuse a value that is not allowed."""
    if not condition:
        raise InvalidValueError(field, value, rule)


def integer(field: str, value: Any, least: float, most: float) -> int:  # noqa: ANN401
    """An integer of any type, NumPy's included, as Python's own."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidValueError(field, value, "an integer") from None
    require(least <= number <= most, field, number, f"between {least} and {most}")
    return number


def real(field: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:  # noqa: ANN401
    """A number of any type, NumPy's included, as Python's own. It may be NaN where there are no bounds."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidValueError(field, value, "a number") from None
    bounded = least > -math.inf or most < math.inf
    require(not bounded or least <= number <= most, field, number, f"between {least:g} and {most:g}")
    return number


def convert(event: Struct, prefix: str, kinds: dict[str, Kind]) -> None:
    """Convert those fields of a frozen structure that are set."""
    for name, (own, least, most) in kinds.items():
        value = getattr(event, name)
        if value is None or (type(value) is own and least <= value <= most):
            continue  # nearly always: events are made for every decision, and mostly of Python's own numbers
        check = integer if own is int else real
        force_setattr(event, name, check(f"{prefix}.{name}", value, least, most))
