"""States: what snapshots, exports and checkpoints keep of a job, as msgspec structs.

A state may come from anywhere. Its types carry limits of length and range, so that nonsense and oversized states are
refused before anything is built from them. They are encoded as MessagePack, columns of numbers as bytes.
"""

import sys
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Raw

from dbw_controller.core.errors import StateDamagedError
from dbw_controller.core.kernels import Array
from dbw_controller.core.reports import MAX_WORKERS

T = TypeVar("T")
Real = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]  # finite
MAX_COUNT = 2**63 - 1
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
K = Annotated[int, Meta(ge=1, le=MAX_WORKERS)]
Name = Annotated[str, Meta(max_length=1024)]
# Numbers of workers; those of workers that never reported one are negative.
Workers = Annotated[list[Annotated[int, Meta(ge=-MAX_WORKERS, le=2**32)]], Meta(max_length=MAX_WORKERS)]
FEW = 100


def one_more(count: int) -> int:
    """The next count, if a state can hold it: what was adopted may have the largest."""
    return min(count + 1, MAX_COUNT)


def encode(state: object) -> bytes:
    """A state as bytes."""
    return msgspec.msgpack.encode(state)


def decode(data: bytes | Raw, kind: type[T]) -> T:
    """The state that bytes hold; refuses any that do not."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise StateDamagedError(str(error)) from error


def decode_reals(data: Raw) -> list[float]:
    """The list of numbers that bytes hold, which is written with nine bytes for each.

    Shorter ones, integers of a single byte for example, would take far more memory than was sent. A few may be.
    """
    kind: Any = Annotated[list[Real], Meta(max_length=max(memoryview(data).nbytes // 9, FEW))]
    numbers: list[float] = decode(data, kind)
    return numbers


def pack(column: Any) -> bytes:  # noqa: ANN401 (an array of any numbers)
    """A column of numbers as bytes."""
    data: bytes = column.astype("<f8").tobytes()
    return data


def unpack(
    data: bytes | memoryview, count: int | None = None, least: float | None = None, most: float | None = None
) -> Array:
    """The column that bytes hold; ValueError if it has another length, or numbers outside the bounds."""
    column = np.frombuffer(data, "<f8").astype(float)
    if count is not None and len(column) != count:
        raise ValueError(f"a column has {len(column)} numbers; expected {count}")
    if least is not None and most is not None and not ((column >= least) & (column <= most)).all():
        raise ValueError(f"a column has numbers that are not between {least:g} and {most:g}")
    return column
