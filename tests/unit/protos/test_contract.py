import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from dbw.v1 import controller_pb2, controller_pb2_grpc
from dbw.v1.controller_pb2 import CoordinateRequest, EndIterationRequest, ReportRequest
from dbw.v1.iteration_pb2 import Estimates, GradientMoments, IterationSummary
from tests.contract import MESSAGES, PROTOS, Field, is_map

SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.binary(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),  # NaN is not equal to itself
    FieldDescriptor.TYPE_INT32: st.integers(0, 999_999_999),  # nanoseconds of a Timestamp
    FieldDescriptor.TYPE_INT64: st.integers(0, 253_402_300_799),  # seconds of a Timestamp
    FieldDescriptor.TYPE_STRING: st.text(st.characters(exclude_categories=["Cs"])),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
}


def messages_of(message: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of a type: every field may be set or not; of a oneof, the last one set remains."""
    fields = {field.name: contents_of(field) for field in message.DESCRIPTOR.fields}
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: message(**values))


def contents_of(field: Field) -> st.SearchStrategy[Any]:
    """Any content of a field: one value, some, or a map."""
    if is_map(field):
        key, value = field.message_type.fields
        return st.dictionaries(values_of(key), values_of(value), max_size=3)
    return st.lists(values_of(field), max_size=3) if field.is_repeated else values_of(field)


def values_of(field: Field) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    if field.enum_type is not None:
        return st.sampled_from(sorted(field.enum_type.values_by_number))
    if field.message_type is not None:
        return messages_of(GetMessageClass(field.message_type))
    return SCALARS[field.type]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.DESCRIPTOR.name)
@given(data=st.data())
@settings(max_examples=30)  # of each of some sixty messages, many of which are parts of others
def test_every_message_survives_bytes_json_and_text(message: type[Message], data: st.DataObject) -> None:
    original = data.draw(messages_of(message))
    assert message.FromString(original.SerializeToString()) == original
    assert json_format.Parse(json_format.MessageToJson(original), message()) == original
    assert text_format.Parse(text_format.MessageToString(original), message()) == original


def test_a_loss_of_zero_is_not_a_missing_loss() -> None:
    summary = IterationSummary.FromString(IterationSummary(loss=0.0).SerializeToString())
    assert summary.HasField("loss")
    assert not summary.HasField("learning_rate")


def test_an_estimate_that_is_missing_from_a_column_stays_missing() -> None:
    estimates = Estimates.FromString(Estimates(gains=[math.nan, 0.5]).SerializeToString())
    assert [math.isnan(gain) for gain in estimates.gains] == [True, False]


def test_a_spread_of_zero_is_not_a_missing_spread() -> None:
    moments = GradientMoments.FromString(GradientMoments(variance=0.0).SerializeToString())
    assert moments.WhichOneof("spread") == "variance"
    assert GradientMoments(mean_squared_norm=1.0).WhichOneof("spread") is None


@given(messages_of(EndIterationRequest))
def test_a_unary_request_is_the_same_on_the_wire_as_the_stream_s(request: EndIterationRequest) -> None:
    on_the_stream = CoordinateRequest.FromString(request.SerializeToString())
    assert text_format.MessageToString(on_the_stream) == text_format.MessageToString(request)


@given(messages_of(ReportRequest))
def test_a_report_is_the_same_on_the_wire_as_the_stream_s(request: ReportRequest) -> None:
    on_the_stream = CoordinateRequest.FromString(request.SerializeToString())
    assert text_format.MessageToString(on_the_stream) == text_format.MessageToString(request)


def test_the_base_requires_versions_that_can_load_the_stubs() -> None:
    project = tomllib.loads((PROTOS.parent / "pyproject.toml").read_text())["project"]
    oldest = dict(item.split(",")[0].split(">=") for item in project["dependencies"])
    assert oldest["grpcio"] == controller_pb2_grpc.GRPC_GENERATED_VERSION
    header = Path(controller_pb2.__file__).read_text().splitlines()
    assert f"# Protobuf Python Version: {oldest['protobuf']}" in header
