"""The contract as seen from Node.js, which is given the .proto files and nothing else."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.contract import MESSAGES as ALL_MESSAGES
from tests.contract import PROTO_FILES, PROTOS, SERVICES, extreme, fillings, is_map, zero
from tests.node import needs_node, run_node

METHODS = {f"/{method.containing_service.full_name}/{method.name}": method for s in SERVICES for method in s.methods}
MESSAGES: dict[str, dict[str, list[Message]]] = {
    path: {
        side: [filled for value in (zero, extreme) for filled in fillings(GetMessageClass(descriptor), value)]
        for side, descriptor in (("request", method.input_type), ("response", method.output_type))
    }
    for path, method in METHODS.items()
}

pytestmark = needs_node


@pytest.fixture(scope="module")
def seen_from_node() -> dict[str, Any]:
    encoded = {
        path: {side: [base64.b64encode(m.SerializeToString()).decode() for m in sent] for side, sent in sides.items()}
        for path, sides in MESSAGES.items()
    }
    files = [str(file) for file in PROTO_FILES]
    return run_node("contract.mjs", {"protos": str(PROTOS), "files": files, "messages": encoded})


def test_every_field_of_every_message_is_sent_to_node() -> None:
    def names(message: Message) -> Iterator[str]:
        for field, content in message.ListFields():
            yield field.full_name
            if field.message_type and not is_map(field):
                for nested in content if field.is_repeated else [content]:
                    yield from names(nested)

    sent = {name for sides in MESSAGES.values() for messages in sides.values() for m in messages for name in names(m)}
    assert {field.full_name for message in ALL_MESSAGES for field in message.DESCRIPTOR.fields} <= sent


def test_node_loads_every_rpc_of_every_service(seen_from_node: dict[str, Any]) -> None:
    assert seen_from_node["methods"] == {
        path: [method.client_streaming, method.server_streaming] for path, method in METHODS.items()
    }


@pytest.mark.parametrize("path", METHODS)
def test_messages_come_back_from_node_unchanged(path: str, seen_from_node: dict[str, Any]) -> None:
    for side, sent in MESSAGES[path].items():
        received = [base64.b64decode(message) for message in seen_from_node["messages"][path][side]]
        assert [type(m).FromString(data) for m, data in zip(sent, received, strict=True)] == sent
