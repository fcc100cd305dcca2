"""Whether a controller answers what was recorded."""

import math
import os
from collections.abc import Iterator
from typing import Any

# Another processor's NumPy, or another version of it, may round logarithms and powers differently in the last bit.
# Where the recordings were made, and with the same packages, everything must be the same bit for bit.
BIT_FOR_BIT = os.environ.get("DBW_TEST_BIT_FOR_BIT") == "1"
TOLERANCE = 1e-12
ANSWERS = ("response", "responses", "error")
# Fields that the contract has had since the recordings were made; a client of then does not see them.
NEW_FIELDS = {"min_iterations", "sufficient_iterations"}


def differences(recorded: Any, played: Any, path: str = "") -> Iterator[str]:
    """Where an answer is not the one that was recorded. Texts of errors are for people, and may be improved."""
    if isinstance(recorded, dict) and isinstance(played, dict):
        keys = recorded.keys() | played.keys() - NEW_FIELDS
        for key in sorted(keys - {"text"} if "code" in recorded else keys):
            yield from differences(recorded.get(key), played.get(key), f"{path}.{key}")
    elif isinstance(recorded, list) and isinstance(played, list) and len(recorded) == len(played):
        for i, pair in enumerate(zip(recorded, played, strict=True)):
            yield from differences(*pair, f"{path}[{i}]")
    elif not _same(recorded, played):
        yield f"{path} was {recorded!r} and is {played!r}"


def _same(recorded: Any, played: Any) -> bool:
    """Whether two values are the same. Numbers that are not finite are texts in JSON, so that NaN equals NaN."""
    if isinstance(recorded, float) and isinstance(played, float):
        if BIT_FOR_BIT:
            return repr(recorded) == repr(played)  # which tells −0.0 from 0.0
        return math.isclose(recorded, played, rel_tol=TOLERANCE, abs_tol=0.0)
    return type(recorded) is type(played) and bool(recorded == played)


def answer_of(step: dict[str, Any]) -> dict[str, Any]:
    """The recorded answer to a step."""
    return {key: step[key] for key in ANSWERS if key in step}
