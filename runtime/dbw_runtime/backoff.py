"""How long to wait between attempts to reach a server."""

import random
from collections.abc import Callable, Iterator


def backoff(first: float, longest: float, uniform: Callable[[float, float], float] = random.uniform) -> Iterator[float]:
    """Seconds to wait before each further attempt: twice as long each time, up to `longest`.

    Each wait is shortened at random by up to half, so that clients that lost a server together do not return together.
    """
    delay = first
    while True:
        yield delay * uniform(0.5, 1.0)
        delay = min(2 * delay, longest)
