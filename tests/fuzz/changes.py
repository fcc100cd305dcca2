"""Random changes of structured data: values at the edges of what is allowed, things left out or repeated.

Bytes that are changed one by one rarely get past the first check of a format; these still have its structure.
"""

import math
import struct
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec

REALS = (0.0, -0.0, 5e-324, 1e-300, 0.5, 1.0, -1.0, 1e12, 1e30, sys.float_info.max, math.inf, -math.inf, math.nan)
# Powers of two are the edges of types, and the others of what the programs allow.
INTEGERS = (0, 1, -1, 2, 3, 63, 64, 65, 1000, 1024, 10_000, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**64 - 1)
TEXTS = ("", "a", "dbw", "ü", "\0", "x" * 200, "../../x", "𝒯\ud7ff")
VALUES: tuple[Any, ...] = (None, True, False, *REALS, *INTEGERS, *TEXTS, b"", b"\0", [], {})
MAX_CHANGES = 4
Tree = Any  # dictionaries and lists of anything
Mutate = Callable[[bytes], bytes]


def changed_tree(random: Random, tree: Tree, mutate: Mutate) -> Tree:
    """A tree in which a few things were changed, in place where possible; `mutate` changes bytes."""
    for _ in range(random.randint(1, MAX_CHANGES)):
        places = list(_places(tree))
        if not places:
            return random.choice(VALUES)
        container, key = random.choice(places)
        _change(random, container, key, places, mutate)
    return tree


def _places(tree: Tree) -> Iterator[tuple[Any, Any]]:
    """All that can be changed in a tree: containers, and keys or positions in them."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from _places(tree[key])


def _change(random: Random, container: Any, key: Any, places: list[tuple[Any, Any]], mutate: Mutate) -> None:
    match random.randrange(8):
        case 0:
            del container[key]
        case 1:
            container[key] = random.choice(VALUES)
        case 2:
            other, at = random.choice(places)
            if at in other if isinstance(other, dict) else at < len(other):
                container[key] = msgspec.to_builtins(other[at], builtin_types=(bytes,), enc_hook=lambda value: value)
        case 3 if isinstance(container, list):
            container[key:key] = [container[key]] * random.choice((1, 2, 100, 2000))
        case _:
            container[key] = _nearby(random, container[key], mutate)


def _nearby(random: Random, value: Any, mutate: Mutate) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return random.choice((value + 1, value - 1, -value, value * 2, random.choice(INTEGERS)))
        case float():
            return random.choice((-value, value * 2, value / 1e9, random.choice(REALS)))
        case str():
            return random.choice((value[:-1], value * 2, random.choice(TEXTS)))
        case bytes():
            return _other_column(random, value) if random.random() < 0.7 else mutate(value)
        case list():
            return random.choice((value[1:], value[:-1], value[::-1], value * 2, []))
        case dict():
            return dict(list(value.items())[1:])
    return random.choice(VALUES)


def _other_column(random: Random, data: bytes) -> bytes:
    """A column of numbers, as states have them, with another one in it, or another length."""
    numbers = list(struct.unpack(f"<{len(data) // 8}d", data[: len(data) // 8 * 8]))
    match random.randrange(4):
        case 0:
            numbers = numbers[: random.randint(0, len(numbers))]
        case 1:
            numbers = numbers * random.choice((2, 3))
        case _ if numbers:
            for _ in range(random.randint(1, 3)):
                near = numbers[random.randrange(len(numbers))]
                others = (near + 1, near - 1, -near, *REALS, *map(float, INTEGERS))
                numbers[random.randrange(len(numbers))] = random.choice(others)
    return struct.pack(f"<{len(numbers)}d", *numbers)
