"""Random messages of the contract: all that its types allow, and what they do not."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.contract import Field, is_map
from tests.fuzz.changes import INTEGERS, REALS, TEXTS

RANGES = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
LENGTHS = (0, 1, 2, 3, 4, 4, 4, 5, 17)
# A field that no message has, as a number, as bytes and as a group, which protobuf has given up; and broken ones.
STRANGERS = (b"\xf8\x3f\x05", b"\xfa\x3f\x02hi", b"\xfb\x3f\xfc\x3f", b"\xfa\x3f\x7f", b"\x07", b"\x80" * 11, b"\x0a")


class Messages:
    """Makes messages. `known` has values that are likelier to get somewhere, by the names of fields."""

    def __init__(self, random: Random, known: Mapping[str, Sequence[Any]] | None = None) -> None:
        self._random, self._known = random, known or {}

    def message(self, kind: type[Message]) -> Message:
        """Any message of a type."""
        message = kind()
        for field in message.DESCRIPTOR.fields:
            if self._random.random() < 0.7:
                self._set(message, field)
        return message

    def change(self, message: Message) -> Message:
        """Change something in a message, or in one that it has; returns it."""
        fields: list[Field] = list(message.DESCRIPTOR.fields)
        if not fields:
            return message
        field = self._random.choice(fields)
        nested = [] if field.message_type is None or is_map(field) else _messages_in(message, field)
        if nested and self._random.random() < 0.7:
            self.change(self._random.choice(nested))
        elif self._random.random() < 0.2:
            message.ClearField(field.name)
        else:
            self._set(message, field)
        return message

    def encoded(self, message: Message) -> bytes:
        """A message as bytes, which may have been spoilt."""
        data = message.SerializeToString()
        match self._random.randrange(20):
            case 0:
                return data + self._random.choice(STRANGERS)
            case 1:
                at = self._random.randint(0, len(data))
                return data[:at] + self._random.randbytes(self._random.randint(0, 4)) + data[at + 2 :]
            case 2:
                return data[: self._random.randint(0, len(data))]
            case 3:
                return data + data
            case 4:
                return self._random.randbytes(self._random.choice((0, 1, 10, 1000)))
        return data

    def _set(self, message: Message, field: Field) -> None:
        count = self._random.choice(LENGTHS)
        if is_map(field):
            key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            for _ in range(min(count, 3)):
                getattr(message, field.name)[self._scalar(key)] = self._scalar(value)
        elif field.message_type is not None:
            kind = GetMessageClass(field.message_type)
            if field.is_repeated:
                message.ClearField(field.name)
                getattr(message, field.name).extend(self.message(kind) for _ in range(count))
            else:
                getattr(message, field.name).CopyFrom(self.message(kind))
        elif field.is_repeated:
            message.ClearField(field.name)
            getattr(message, field.name).extend(self._scalar(field) for _ in range(count))
        else:
            setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: Field) -> Any:
        random = self._random
        if (known := self._known.get(field.name)) and random.random() < 0.8:
            return random.choice(known)
        match field.type:
            case FieldDescriptor.TYPE_BOOL:
                return random.random() < 0.5
            case FieldDescriptor.TYPE_BYTES:
                return random.randbytes(random.choice((0, 1, 8, 1000)))
            case FieldDescriptor.TYPE_DOUBLE:
                return random.choice((random.uniform(0, 5), random.choice(REALS)))
            case FieldDescriptor.TYPE_ENUM:  # beside those that the contract has, any number may come
                return random.choice((*field.enum_type.values_by_number, 99, -1))
            case FieldDescriptor.TYPE_STRING:
                return random.choice(TEXTS)
        least, most = RANGES[field.type]
        return random.choice((random.randint(0, 5), min(max(random.choice(INTEGERS), least), most)))


def _messages_in(message: Message, field: Field) -> list[Message]:
    if field.is_repeated:
        return list(getattr(message, field.name))
    return [getattr(message, field.name)] if message.HasField(field.name) else []
