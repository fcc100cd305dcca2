"""How much a message would be in memory, found out before it is parsed.

Two bytes of an empty submessage become an object of a hundred and more, so that a message of a few megabytes may take
gigabytes. Fields are counted on the wire, and the count stops as soon as there are too many: memory and time stay in
proportion to what is allowed. Packed numbers are one field, however many there are.
"""

from functools import cache
from typing import Any, TypeAlias

from google.protobuf.message import Message

from dbw_runtime.failure import StatusError, limit_reached

# Shorter messages cannot do harm, and are not looked at.
SCANNED_BYTES = 16 * 2**10
# The largest message that a client of ours sends has some thousands of submessages, with a few fields each.
MAX_SUBMESSAGES, MAX_FIELDS = 10_000, 50_000
VARINT, FIXED64, LENGTH_DELIMITED, BEGIN_GROUP, END_GROUP, FIXED32 = range(6)
RETRY_SECONDS = 30.0

Descriptor = Any  # which has two types in the stubs
Submessages: TypeAlias = dict[int, Descriptor]  # the types of a message's fields that are messages, by their tags


@cache
def _submessages(kind: Descriptor) -> Submessages:
    types = {field.number: field.message_type for field in kind.fields}  # None: not a message
    return {number << 3 | LENGTH_DELIMITED: message for number, message in types.items() if message is not None}


def require_few_fields(kind: type[Message], data: bytes) -> None:
    """Refuse a message that would become very many objects."""
    if len(data) <= SCANNED_BYTES:
        return
    fields, submessages = count_fields(kind, data)
    if submessages > MAX_SUBMESSAGES:
        raise _too_many("submessages", MAX_SUBMESSAGES)
    if fields > MAX_FIELDS:
        raise _too_many("fields", MAX_FIELDS)


def _too_many(what: str, most: int) -> StatusError:
    text = f"a message may have {most} {what}, with all that is in it; send several, with numbers packed"
    return limit_reached(what, text, RETRY_SECONDS)


def count_fields(kind: type[Message], data: bytes) -> tuple[int, int]:
    """The fields of a message and of all messages in it, and how many of these there are.

    The count stops soon after one of them is larger than allowed, and where the bytes make no sense: the parser will
    say so.
    """
    fields = submessages = 0
    unread: list[tuple[Descriptor, int, int]] = [(kind.DESCRIPTOR, 0, len(data))]
    while unread:
        message, position, end = unread.pop()
        known = _submessages(message)
        while position < end:
            fields += 1
            if fields > MAX_FIELDS or submessages > MAX_SUBMESSAGES:
                return fields, submessages
            tag = data[position]
            position += 1
            if tag >= 0x80:  # which takes several bytes
                tag, position = _varint(data, position - 1, end)
            wire_type = tag & 7
            if wire_type == LENGTH_DELIMITED:
                length, position = _varint(data, position, end)
                if tag in known:
                    submessages += 1
                    unread.append((known[tag], position, min(position + length, end)))
                position += length
            elif wire_type == VARINT:
                _, position = _varint(data, position, end)
            elif wire_type == FIXED64:
                position += 8
            elif wire_type == FIXED32:
                position += 4
            elif wire_type not in (BEGIN_GROUP, END_GROUP):  # of an unknown field: its content follows
                return fields, submessages
    return fields, submessages


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """An integer, and the position after it; beyond the end if it does not end before."""
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift >= 70:  # the parser refuses it
            break
    return value, end
