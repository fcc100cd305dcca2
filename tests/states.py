"""States taken apart, for tests that change something in them."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from dbw_controller.core.state import encode

Change = Callable[[dict[str, Any]], object]


def opened(state: object) -> Any:
    """An encoded state, or one that can be, as dictionaries and lists."""
    return msgspec.msgpack.decode(state if isinstance(state, bytes) else encode(state))


def changed(state: object, change: Change) -> bytes:
    """The encoded state in which something was changed."""
    content = opened(state)
    change(content)
    return encode(content)


def raw(state: object) -> Raw:
    """A state as it is inside of another that is encoded."""
    return Raw(encode(state))
