"""The mean of gradients and their moments, from pieces as they come (paper, Section 3.1)."""

import math
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import pieces
from dbw_ps.aggregate import Aggregate, WholeGradient
from dbw_ps.gradient import SMALL_BYTES, IncomingGradient, MalformedError, NotFiniteError, RejectedError
from dbw_ps.messages import TYPE_NUMBERS
from dbw_ps.model import Layout, TensorSpec
from dbw_ps.tensors import bytes_of

LAYOUT = Layout((TensorSpec("weight", (5, 4)), TensorSpec("bias", (5,))), (TensorSpec("mean", (3,)),))
ELEMENTS, BUFFERS = 25, 3


def vector(seed: int) -> Tensor:
    return torch.randn(ELEMENTS + BUFFERS, generator=torch.Generator().manual_seed(seed))


def header(kind: torch.dtype = torch.float32, **told: Any) -> pb.GradientHeader:
    size = ELEMENTS * kind.itemsize + BUFFERS * 4
    return pb.GradientHeader(**{"type": TYPE_NUMBERS[kind], "total_bytes": size, **told})


def wire(values: Tensor, kind: torch.dtype = torch.float32) -> bytes:
    trained, buffers = values[:ELEMENTS].to(kind), values[ELEMENTS:]
    return bytes(bytes_of(trained)) + bytes(bytes_of(buffers))


def received(
    values: Tensor, cuts: tuple[int, ...] = (), kind: torch.dtype = torch.float32, **told: Any
) -> WholeGradient:
    """A gradient that came in pieces, cut where asked for."""
    gradient, data = IncomingGradient(header(kind, **told), LAYOUT), wire(values, kind)
    for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        gradient.take(pieces.decode(pieces.encode(b"", begin, memoryview(data[begin:end]))))
    return gradient.whole


def aggregate(accumulate: torch.dtype = torch.float32) -> tuple[Aggregate, Tensor, Tensor]:
    gradient, buffers = torch.zeros(ELEMENTS), torch.zeros(BUFFERS)
    return Aggregate(gradient, buffers, accumulate), gradient, buffers


@pytest.mark.parametrize("accumulate", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 2, 7])
def test_paper_the_mean_and_its_moments(k: int, accumulate: torch.dtype) -> None:
    summed, gradient, buffers = aggregate(accumulate)
    for _ in range(2):  # the second time shows that nothing is left of the first
        vectors = [vector(seed) for seed in range(k)]
        for values in vectors:
            summed.add(received(values))
        moments = summed.finish()
        exact = torch.stack(vectors).double()
        torch.testing.assert_close(gradient.double(), exact[:, :ELEMENTS].mean(0), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(buffers.double(), exact[:, ELEMENTS:].mean(0), rtol=1e-6, atol=1e-6)
        assert moments.mean_squared_norm == pytest.approx(float(exact[:, :ELEMENTS].mean(0).square().sum()), rel=1e-5)
        assert moments.sum_squared_norms == pytest.approx(float(exact[:, :ELEMENTS].square().sum()), rel=1e-12)
        assert (moments.within_worker_variance, moments.degrees_of_freedom) == (None, 0)


@given(st.sets(st.integers(0, 27)), st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]))
def test_it_does_not_matter_where_a_gradient_is_cut(cuts: set[int], kind: torch.dtype) -> None:
    trained = ELEMENTS * kind.itemsize
    places = [c * kind.itemsize if c <= ELEMENTS else trained + (c - ELEMENTS) * 4 for c in sorted(cuts)]
    summed, gradient, buffers = aggregate()
    incoming = received(vector(1), tuple(places), kind)
    summed.add(incoming)
    summed.finish()
    assert torch.equal(gradient, vector(1)[:ELEMENTS].to(kind).float())
    assert torch.equal(buffers, vector(1)[ELEMENTS:])
    assert incoming.squared_norm == pytest.approx(float(gradient.double().square().sum()), rel=1e-12)


def test_the_variance_inside_workers_is_pooled() -> None:
    summed, _, _ = aggregate()
    parts = [
        [vector(10 + j)[:ELEMENTS].double() for j in range(2)],
        [vector(20 + j)[:ELEMENTS].double() for j in range(4)],
    ]
    pooled, freedom = 0.0, 0
    for worker in parts:
        mean = torch.stack(worker).mean(0)
        estimate = sum(float((part - mean).square().sum()) for part in worker) / (len(worker) * (len(worker) - 1))
        pooled, freedom = pooled + estimate * (len(worker) - 1), freedom + len(worker) - 1
        whole = torch.cat([mean.float(), torch.zeros(BUFFERS)])
        summed.add(received(whole, part_squared_norms=[float(part.square().sum()) for part in worker]))
    moments = summed.finish()
    assert moments.degrees_of_freedom == freedom == 4
    assert moments.within_worker_variance == pytest.approx(pooled / freedom, rel=1e-5)


def test_large_gradients_do_not_overflow() -> None:
    values = torch.full((ELEMENTS + BUFFERS,), 1e29)
    assert received(values).squared_norm == pytest.approx(ELEMENTS * 1e58, rel=1e-6)


def test_one_that_would_overflow_the_sum_is_refused() -> None:
    with pytest.raises(NotFiniteError, match=r"its norm is above 1e\+30"):
        received(torch.full((ELEMENTS + BUFFERS,), 1e30))


def test_small_pieces_are_joined_and_large_ones_stay_as_they_came() -> None:
    layout = Layout((TensorSpec("w", (3 * SMALL_BYTES,)),), ())
    data = bytes(bytes_of(torch.arange(3.0 * SMALL_BYTES)))
    gradient = IncomingGradient(pb.GradientHeader(total_bytes=len(data)), layout)
    begin, sizes = 0, [*[4] * 100, SMALL_BYTES, *[SMALL_BYTES // 2] * 5]
    for size in (*sizes, len(data) - sum(sizes)):
        gradient.take(pieces.decode(pieces.encode(None, begin, memoryview(data[begin : begin + size]))))
        begin += size
    vectors = gradient.whole.parameters
    rest = len(data) - sum(sizes)
    lengths = [400, SMALL_BYTES, SMALL_BYTES, SMALL_BYTES, SMALL_BYTES // 2, rest]
    assert [4 * len(vector) for vector in vectors] == lengths
    assert torch.equal(torch.cat(list(vectors)), torch.arange(3.0 * SMALL_BYTES))


def test_a_piece_that_is_a_small_part_of_its_message_does_not_keep_all_of_that() -> None:
    layout = Layout((TensorSpec("w", (SMALL_BYTES,)),), ())
    gradient = IncomingGradient(pb.GradientHeader(total_bytes=4 * SMALL_BYTES), layout)
    data = bytes(bytes_of(torch.arange(1.0 * SMALL_BYTES)))
    message = pieces.encode(None, 0, memoryview(data)) + pieces.encode(bytes(len(data) * 2), 0, memoryview(b""))
    before = sys.getrefcount(message)
    gradient.take(pieces.decode(message))
    assert sys.getrefcount(message) == before
    assert torch.equal(gradient.whole.parameters[0], torch.arange(1.0 * SMALL_BYTES))


def take(gradient: IncomingGradient, offset: int, data: bytes) -> None:
    gradient.take(pieces.Piece(None, offset, memoryview(data)))


@pytest.mark.parametrize("place", range(ELEMENTS + BUFFERS))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_noticed_wherever_they_are(place: int, value: float) -> None:
    values = vector(0)
    values[place] = value
    with pytest.raises(NotFiniteError, match="not finite"):
        received(values)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_noticed_at_once(loss: float) -> None:
    with pytest.raises(NotFiniteError, match="its loss is"):
        IncomingGradient(header(loss=loss), LAYOUT)


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"total_bytes": 111}, "total_bytes is 111; the layout has 112"),
        ({"type": 99}, "type is 99"),
        ({"part_squared_norms": [1.0] * 65_537}, "of 65537 parts; at most 65536"),
    ],
)
def test_a_header_must_fit_the_layout(told: dict[str, Any], problem: str) -> None:
    with pytest.raises(MalformedError, match=problem):
        IncomingGradient(header(**told), LAYOUT)


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ([(4, bytes(4))], "a piece stands at 4; the next one should at 0"),
        ([(0, bytes(8)), (0, bytes(8))], "a piece stands at 0; the next one should at 8"),
        ([(0, bytes(8)), (8, b"")], "the piece at 8 is empty"),
        ([(0, bytes(113))], "it has more than 112 bytes"),
        ([(0, bytes(3))], "does not have whole elements"),
        ([(0, bytes(102))], "does not have whole elements"),
    ],
)
def test_pieces_must_fit_together(sent: list[tuple[int, bytes]], problem: str) -> None:
    gradient = IncomingGradient(header(), LAYOUT)
    *before, last = sent
    for offset, data in before:
        take(gradient, offset, data)
    with pytest.raises(RejectedError, match=problem):
        take(gradient, *last)
    assert not gradient.is_complete
