"""What a fuzzer needs to know of a decoder."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

Mutate = Callable[[bytes], bytes]  # libFuzzer's own changes of bytes


def by_bytes(data: bytes, _: Random, mutate: Mutate) -> bytes:
    """Change bytes, whatever they mean."""
    return mutate(data)


@dataclass(frozen=True)
class Target:
    """A decoder. `run` returns where it takes bytes or refuses them as documented; any other error is a finding."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    mutate: Callable[[bytes, Random, Mutate], bytes] = by_bytes
    short_runs: int = 2000  # that a test can afford
    max_bytes: int = 16 * 2**10
