"""The count of a message's fields on the wire, before it is parsed."""

from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import Arrivals, EndedIteration, GradientMoments, IterationSummary
from dbw.v1.job_pb2 import CustomPolicy, JobSpec, Policy
from dbw.v1.parameter_server_pb2 import JoinRequest, ModelLayout, PushGradientRequest, Tensor
from dbw_runtime.failure import StatusError
from dbw_runtime.rpc import parsed
from dbw_runtime.wire_scan import MAX_FIELDS, MAX_SUBMESSAGES, SCANNED_BYTES, count_fields

KINDS = [pb.CoordinateRequest, pb.ReportRequest, pb.EndIterationRequest, pb.CreateJobRequest, JoinRequest]
KINDS += [pb.ImportJobStateRequest, PushGradientRequest]
numbers = st.integers(0, 2**32 - 1)
batches = st.lists(
    st.builds(Arrivals, iteration=numbers, seconds=st.lists(st.floats(0, 9)), workers=st.lists(numbers)), max_size=4
)
summaries = st.builds(
    IterationSummary,
    iteration=numbers,
    loss=st.none() | st.floats(),
    moments=st.none() | st.builds(GradientMoments, variance=st.floats()),
)
ended = st.builds(EndedIteration, arrivals=batches, summary=summaries)
requests = st.builds(
    pb.CoordinateRequest, job=st.text(), arrivals=batches, summary=summaries, preceding=st.lists(ended, max_size=4)
)
policies = st.builds(CustomPolicy, parameters=st.dictionaries(st.text(max_size=3), st.floats(), max_size=4))
created = st.builds(
    pb.CreateJobRequest,
    spec=st.builds(JobSpec, policy=st.builds(Policy, custom=policies)),
    iteration=st.none() | numbers,
)
tensors = st.lists(st.builds(Tensor, name=st.text(), shape=st.lists(numbers)), max_size=4)
joins = st.builds(JoinRequest, layout=st.builds(ModelLayout, parameters=tensors, buffers=tensors))


def submessages(message: Message) -> int:
    """How many messages protobuf has made of what is in a message; an entry of a map is one on the wire."""
    count = 0
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            count += len(value)
            continue
        items: Any = value if field.is_repeated else [value]
        count += sum(1 + submessages(item) for item in items)
    return count


@given(requests | created | joins)
def test_as_many_submessages_are_counted_as_protobuf_makes(message: Message) -> None:
    _, counted = count_fields(type(message), message.SerializeToString())
    assert counted == submessages(message)


@given(st.sampled_from(KINDS), st.binary(max_size=200))
def test_of_any_bytes_that_protobuf_parses_no_submessage_is_missed(kind: Any, data: bytes) -> None:
    _, counted = count_fields(kind, data)
    try:
        message = kind.FromString(data)
    except DecodeError:
        return
    assert counted >= submessages(message)  # more where one replaces another


@given(requests | joins, st.randoms(use_true_random=False))
def test_broken_messages_are_left_to_protobuf(message: Message, random: Any) -> None:
    data = bytearray(message.SerializeToString())
    for _ in range(min(len(data), 3)):
        data[random.randrange(len(data))] = random.randrange(256)
    count_fields(type(message), bytes(data))


def layout(tensors: int) -> JoinRequest:
    return JoinRequest(layout=ModelLayout(parameters=[Tensor()] * tensors))


@pytest.mark.parametrize(
    "message",
    [
        pb.ReportRequest(arrivals=[Arrivals()] * (MAX_SUBMESSAGES + 1)),
        pb.EndIterationRequest(preceding=[EndedIteration(arrivals=[Arrivals()] * MAX_SUBMESSAGES)] * 2),
        layout(MAX_SUBMESSAGES),
    ],
    ids=["arrivals", "nested arrivals", "layout"],
)
def test_a_message_with_too_many_submessages_is_refused_unparsed(message: Message) -> None:
    with pytest.raises(StatusError) as refused:
        parsed(type(message), message.SerializeToString())
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
    assert "send several" in refused.value.text


@pytest.mark.parametrize("field", [b"\x78\x01", b"\x7a\x00", b"\x25\0\0\0\0", b"\x21" + bytes(8), b"\x7b\x7c"])
def test_a_message_with_too_many_fields_is_refused_unparsed(field: bytes) -> None:
    with pytest.raises(StatusError) as refused:
        parsed(pb.ReportRequest, field * (MAX_FIELDS + 1))
    assert refused.value.reason == "LIMIT_REACHED"


def test_the_count_stops_when_a_limit_is_passed() -> None:
    endless = layout(100 * MAX_SUBMESSAGES).SerializeToString()
    fields, submessages = count_fields(JoinRequest, endless)
    assert submessages <= MAX_SUBMESSAGES + 2
    assert fields <= MAX_SUBMESSAGES + 3


def test_long_columns_are_few_fields() -> None:
    batch = Arrivals(seconds=[1.0] * 100_000, workers=range(100_000))
    message = pb.ReportRequest(arrivals=[batch])
    data = message.SerializeToString()
    assert len(data) > SCANNED_BYTES
    assert count_fields(type(message), data) == (3, 1)
    assert parsed(pb.ReportRequest, data) == message
