"""Pieces that are read and written by hand are those that protobuf reads and writes."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps.pieces import PIECE_BYTES, SINGLE_BYTES, PieceError, cut, decode, encode

MESSAGES = [pb.PushGradientRequest, pb.SubscribeResponse, pb.PullParametersResponse]
HEADER = pb.GradientHeader(session="s", version=3, loss=0.5)


@given(st.none() | st.binary(max_size=300).map(lambda b: pb.GradientHeader(session=b.hex())), st.integers(0, 2**64 - 1))
def test_protobuf_reads_what_we_write(header: pb.GradientHeader | None, offset: int) -> None:
    data = b"0123456789" * 30
    message = encode(None if header is None else header.SerializeToString(), offset, memoryview(data))
    whole = pb.PushGradientRequest.FromString(message)
    assert (whole.offset, whole.data, whole.HasField("header")) == (offset, data, header is not None)
    assert header is None or whole.header == header


@pytest.mark.parametrize("kind", MESSAGES)
def test_all_messages_with_pieces_have_the_same_fields(kind: type[pb.PushGradientRequest]) -> None:
    message = encode(b"", 300, memoryview(b"abc"))
    whole = kind.FromString(message)
    assert (whole.HasField("header"), whole.offset, whole.data) == (True, 300, b"abc")


@given(st.integers(0, 2**64 - 1), st.binary(max_size=2000))
def test_we_read_what_protobuf_writes(offset: int, data: bytes) -> None:
    message = pb.PushGradientRequest(header=HEADER, offset=offset, data=data).SerializeToString()
    piece = decode(message)
    assert piece.header is not None
    assert (bytes(piece.header), piece.offset, bytes(piece.data)) == (HEADER.SerializeToString(), offset, data)


@given(st.binary(max_size=40))
def test_we_refuse_and_read_bytes_as_protobuf_does(noise: bytes) -> None:
    whole = pb.PushGradientRequest()
    try:
        whole.ParseFromString(noise)
    except DecodeError:
        return  # protobuf looks into headers and at field numbers, too, and refuses more
    piece = decode(noise) if 3 not in {byte & 7 for byte in noise} else None  # groups are history
    if piece is not None:
        assert (piece.offset, bytes(piece.data)) == (whole.offset, whole.data)
        assert piece.header is None or pb.GradientHeader.FromString(bytes(piece.header)) == whole.header


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"\x1a\x05abc", "a field of 5 bytes, of which 3 are there"),
        (b"\x10", "ends in the middle of a number"),
        (b"\x10" + b"\x80" * 10 + b"\x01", "more than 10 bytes"),
        (b"\x1b", "wire type 3"),
        (b"\x0a\x00" * 33, "more than 32 fields"),
    ],
)
def test_what_is_wrong_is_said(message: bytes, problem: str) -> None:
    with pytest.raises(PieceError, match=problem):
        decode(message)


def test_fields_of_the_future_are_skipped() -> None:
    future = b"\x20\x05" + b"\x29" + bytes(8) + b"\x35" + bytes(4) + b"\x3a\x02hi"
    piece = decode(future + encode(None, 7, memoryview(b"data")) + future)
    assert (piece.header, piece.offset, bytes(piece.data)) == (None, 7, b"data")


def test_data_is_a_view_of_the_message() -> None:
    message = encode(b"header", 0, memoryview(b"data"))
    assert decode(message).data.obj is message


@pytest.mark.parametrize("size", [0, 1, SINGLE_BYTES, SINGLE_BYTES + 1, 3 * PIECE_BYTES, 3 * PIECE_BYTES + 5])
def test_a_vector_is_cut_into_pieces_of_limited_size(size: int) -> None:
    vector = bytes(range(256)) * (size // 256) + bytes(size % 256)
    pieces = [decode(message) for message in cut(HEADER, memoryview(vector))]
    assert b"".join(bytes(piece.data) for piece in pieces) == vector
    assert [piece.offset for piece in pieces] == [sum(len(p.data) for p in pieces[:i]) for i in range(len(pieces))]
    assert [piece.header is not None for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert max(len(piece.data) for piece in pieces) <= SINGLE_BYTES
    assert len(pieces) == 1 or max(len(piece.data) for piece in pieces) == PIECE_BYTES
