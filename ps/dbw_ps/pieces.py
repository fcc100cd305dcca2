"""Pieces of vectors on the wire, without the copies that protobuf makes of their bytes.

The three messages that carry a vector, PushGradientRequest, SubscribeResponse and PullParametersResponse, have the same
fields: header (1), offset (2) and data (3). They are read and written here as their .proto file defines them.
"""

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import Message

# A larger piece gains nothing, and below this a vector is faster in a single message.
PIECE_BYTES, SINGLE_BYTES = 2**20, 2 * 2**20
# More fields than any version of the contract has: reading them takes time in proportion to their number.
MAX_FIELDS = 32
# Tags of the fields: its number, and how its content is encoded.
_HEADER, _OFFSET, _DATA = 1 << 3 | 2, 2 << 3, 3 << 3 | 2
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class PieceError(ValueError):
    """Bytes are no piece of a vector."""


class Piece(NamedTuple):
    """One piece. `data` is a view of the message that it came in."""

    header: memoryview | None  # serialised; in the first piece of a vector
    offset: int
    data: memoryview


def encode(header: bytes | None, offset: int, data: memoryview) -> bytes:
    """A piece as it goes over the wire."""
    parts: list[bytes | memoryview] = []
    if header is not None:
        parts += [_varint(_HEADER), _varint(len(header)), header]
    if offset:
        parts += [_varint(_OFFSET), _varint(offset)]
    if data.nbytes:
        parts += [_varint(_DATA), _varint(data.nbytes), data]
    return b"".join(parts)


def cut(header: Message, vector: memoryview) -> Iterator[bytes]:
    """All pieces of a vector of bytes: a single one, or first the header alone and then the rest."""
    if is_short(vector):
        yield encode(header.SerializeToString(), 0, vector)
        return
    yield encode(header.SerializeToString(), 0, vector[:0])
    for offset in range(0, vector.nbytes, PIECE_BYTES):
        yield encode(None, offset, vector[offset : offset + PIECE_BYTES])


def is_short(vector: memoryview) -> bool:
    """Whether a vector goes over the wire in a single piece."""
    return vector.nbytes <= SINGLE_BYTES


def decode(message: bytes) -> Piece:
    """The piece that a message holds. As in protobuf, repeated headers are merged, of other fields the last counts."""
    view = memoryview(message)
    header, offset, data = None, 0, view[:0]
    at = fields = 0
    while at < len(view):
        fields += 1
        if fields > MAX_FIELDS:
            raise PieceError(f"more than {MAX_FIELDS} fields")
        tag, at = _read_varint(view, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _read_varint(view, at)
            if tag == _OFFSET:
                offset = value
            continue
        if kind == _LENGTH:
            length, at = _read_varint(view, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise PieceError(f"a field of wire type {kind}, which is not in use")
        if length > len(view) - at:
            raise PieceError(f"a field of {length} bytes, of which {len(view) - at} are there")
        content, at = view[at : at + length], at + length
        if tag == _HEADER:
            header = content if header is None else memoryview(bytes(header) + bytes(content))
        elif tag == _DATA:
            data = content
    return Piece(header, offset, data)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for i in range(10):
        if at + i >= len(view):
            raise PieceError("it ends in the middle of a number")
        byte = view[at + i]
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + i + 1
    raise PieceError("a number of more than 10 bytes")
