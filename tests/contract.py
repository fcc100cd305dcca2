"""The whole contract, as tests see it: its files, services and messages, and ways to fill any message."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor, FileDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

PROTOS = Path(__file__).resolve().parent.parent / "protos"
PROTO_FILES = sorted(path.relative_to(PROTOS) for path in PROTOS.rglob("*.proto"))
FILES: list[FileDescriptor] = [
    import_module(".".join(path.with_name(f"{path.stem}_pb2").parts)).DESCRIPTOR for path in PROTO_FILES
]
SERVICES: list[ServiceDescriptor] = [service for file in FILES for service in file.services_by_name.values()]
MESSAGES: list[type[Message]] = [
    GetMessageClass(descriptor) for file in FILES for descriptor in file.message_types_by_name.values()
]

Field = Any  # a FieldDescriptor, for which the types of protobuf have two unrelated classes
ZEROS: dict[int, Any] = {
    FieldDescriptor.TYPE_BOOL: False,
    FieldDescriptor.TYPE_BYTES: b"",
    FieldDescriptor.TYPE_DOUBLE: 0.0,
    FieldDescriptor.TYPE_ENUM: 0,
    FieldDescriptor.TYPE_INT32: 0,
    FieldDescriptor.TYPE_INT64: 0,
    FieldDescriptor.TYPE_STRING: "",
    FieldDescriptor.TYPE_UINT32: 0,
    FieldDescriptor.TYPE_UINT64: 0,
}
EXTREMES: dict[int, Any] = {
    FieldDescriptor.TYPE_BOOL: True,
    FieldDescriptor.TYPE_BYTES: bytes(range(256)),
    FieldDescriptor.TYPE_DOUBLE: 0.1 + 0.2,  # needs all of its digits
    FieldDescriptor.TYPE_INT32: 999_999_999,  # nanoseconds of a Timestamp
    FieldDescriptor.TYPE_INT64: 253_402_300_799,  # seconds of the last Timestamp
    FieldDescriptor.TYPE_STRING: "w₀ ≠ ∇F",
    FieldDescriptor.TYPE_UINT32: 2**32 - 1,
    FieldDescriptor.TYPE_UINT64: 2**64 - 1,
}


def zero(field: Field) -> Any:
    """The zero of a scalar field."""
    return ZEROS[field.type]


def extreme(field: Field) -> Any:
    """A value of a scalar field that is hard to carry."""
    return max(field.enum_type.values_by_number) if field.enum_type else EXTREMES[field.type]


def is_map(field: Field) -> bool:
    """Whether a field is a map, which is a repeated message of keys and values on the wire."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def fillings(message: type[Message], value: Callable[[Field], object]) -> Iterator[Message]:
    """The message with all its fields set, nested ones included, often enough for every choice in every oneof."""
    for choice in range(_choices(message.DESCRIPTOR)):
        yield _filled(message.DESCRIPTOR, value, choice)


def _choices(descriptor: Any) -> int:
    nested = (_choices(field.message_type) for field in descriptor.fields if field.message_type)
    return max([1, *(len(oneof.fields) for oneof in descriptor.oneofs), *nested])


def _filled(descriptor: Any, value: Callable[[Field], object], choice: int) -> Message:
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        oneof = field.containing_oneof
        if oneof is not None and field is not oneof.fields[choice % len(oneof.fields)]:
            continue
        content: Any = _filled(field.message_type, value, choice) if field.message_type else value(field)
        if is_map(field):
            getattr(message, field.name)[content.key] = content.value
        elif field.is_repeated:
            getattr(message, field.name).extend([content] * 2)
        elif field.message_type:
            getattr(message, field.name).CopyFrom(content)
        else:
            setattr(message, field.name, content)
    return message
