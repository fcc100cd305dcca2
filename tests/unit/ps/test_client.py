"""What a worker takes from its parameter server, and refuses."""

from typing import Any

import pytest
import torch

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import pieces
from dbw_ps.client import Incoming, gradient_type, on_the_wire
from dbw_ps.tensors import bytes_of

SESSION = pb.JoinResponse(layout=pb.ModelLayout(parameters=[pb.Tensor(name="weight", shape=[2, 3])]))
VECTOR = torch.arange(6, dtype=torch.float32)


def header(**fields: Any) -> bytes:
    return pb.ParametersHeader(**{"version": 3, "total_bytes": VECTOR.nbytes, **fields}).SerializeToString()


def test_parameters_are_there_with_their_last_piece() -> None:
    incoming, data = Incoming(), bytes_of(VECTOR)
    assert incoming.take(pieces.encode(header(), 0, data[:8]), SESSION) is None
    parameters = incoming.take(pieces.encode(None, 8, data[8:]), SESSION)
    assert parameters is not None
    assert parameters.vector.equal(VECTOR)


def test_a_worker_that_has_the_last_parameters_is_told_the_end_without_them() -> None:
    incoming = Incoming()
    incoming.take(pieces.encode(header(total_bytes=0, finished=True), 0, memoryview(b"")), SESSION)
    assert incoming.header.finished


@pytest.mark.parametrize("wrong", [0, 1, 20, 28, 2**40, 2**64 - 1])
def test_parameters_of_another_size_than_the_model_are_refused_before_there_is_memory_for_them(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"{wrong} bytes of parameters come, and the model has 24"):
        Incoming().take(pieces.encode(header(total_bytes=wrong), 0, bytes_of(VECTOR)), SESSION)


def test_a_header_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not a header of parameters"):
        Incoming().take(pieces.encode(b"\x0f", 0, bytes_of(VECTOR)), SESSION)


def test_a_gradient_goes_as_float32_where_the_server_would_like_a_type_that_we_do_not_know() -> None:
    newer = pb.JoinResponse(layout=SESSION.layout, gradient_type=99)  # type: ignore[arg-type] # what no enum of today has
    assert gradient_type(newer) == pb.ELEMENT_TYPE_FLOAT32
    assert on_the_wire(VECTOR, newer) == bytes_of(VECTOR)
