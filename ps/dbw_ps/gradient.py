"""One gradient, from its first piece to its last."""

import math
from typing import Any, ClassVar

import torch

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps.aggregate import WholeGradient
from dbw_ps.losses import LARGEST_LOSS, is_sensible
from dbw_ps.members import SessionNotFoundError
from dbw_ps.messages import TYPES
from dbw_ps.model import Layout
from dbw_ps.norms import squared_norm
from dbw_ps.pieces import Piece
from dbw_ps.rounds import Fate
from dbw_ps.tensors import vector_over

# So that the sum of any number of gradients stays in float32's range, whatever type they come in.
LARGEST_NORM = 1e30
LARGEST_SQUARED_NORM = LARGEST_NORM**2
SMALL_BYTES = 2**16  # each piece takes some hundred bytes beside its own, so that smaller ones are joined
MAX_PARTS = 2**16  # of a mini-batch


class RejectedError(Exception):
    """A gradient cannot be used; the text says why."""

    outcome: ClassVar["pb.GradientOutcome.ValueType"]
    fate: ClassVar[Fate] = Fate.REJECTED


class MalformedError(RejectedError):
    """A gradient is not what its header and the layout say."""

    outcome = pb.GRADIENT_OUTCOME_MALFORMED


class NotFiniteError(RejectedError):
    """A gradient has elements, or a loss, that are not finite, or absurd."""

    outcome = pb.GRADIENT_OUTCOME_NOT_FINITE


class OutlierError(RejectedError):
    """A gradient is far larger than gradients usually are."""

    outcome = pb.GRADIENT_OUTCOME_OUTLIER
    fate = Fate.OUTLIER


class BrokenOffError(SessionNotFoundError):
    """The rest of a gradient did not come: its worker's session ends, and a worker that is alive begins it again."""


class Gathered:
    """The pieces of a vector as they came. Small ones are joined, so that they take no more memory than their size.

    So are pieces that are a small part of the message that they came in, of which they are views.
    """

    def __init__(self, kind: torch.dtype) -> None:
        self._kind = kind
        self._vectors: list[torch.Tensor] = []
        self._small = bytearray()

    def add(self, data: memoryview) -> torch.Tensor:
        """Add a piece; returns it as a vector."""
        vector = vector_over(data, self._kind)
        message: Any = data.obj
        if data.nbytes >= SMALL_BYTES and 2 * data.nbytes >= len(message):
            self._join_small()
            self._vectors.append(vector)
        else:
            self._small += data
            if len(self._small) >= SMALL_BYTES:
                self._join_small()
        return vector

    @property
    def vectors(self) -> list[torch.Tensor]:
        """All of it, in order."""
        self._join_small()
        return self._vectors

    def _join_small(self) -> None:
        if self._small:
            self._vectors.append(vector_over(memoryview(self._small), self._kind))
            self._small = bytearray()


class IncomingGradient:
    """A gradient that is being received. Its pieces stay as they came, until it is known whether it counts."""

    def __init__(self, header: pb.GradientHeader, layout: Layout) -> None:
        if header.HasField("loss") and not is_sensible(header.loss):
            raise NotFiniteError(f"its loss is {header.loss:g}, which is not finite, or beyond {LARGEST_LOSS:g}")
        if header.type not in TYPES:
            raise MalformedError(f"type is {header.type}, which this server does not know")
        self.header, self.type = header, TYPES[header.type]
        if len(header.part_squared_norms) > MAX_PARTS:
            parts = len(header.part_squared_norms)
            raise MalformedError(f"it has the squared norms of {parts} parts; at most {MAX_PARTS} are allowed")
        self._trained_bytes = layout.parameter_elements * self.type.itemsize
        self._total = self._trained_bytes + layout.buffer_elements * torch.float32.itemsize
        if header.total_bytes != self._total:
            raise MalformedError(f"total_bytes is {header.total_bytes}; the layout has {self._total}")
        self._has_begun = False
        self._received = 0
        self._parameters, self._buffers = Gathered(self.type), Gathered(torch.float32)
        self._squared_norm = self._squared_buffer_norm = 0.0

    @property
    def whole(self) -> WholeGradient:
        """The gradient, once it is complete."""
        assert self.is_complete
        norms = self._squared_norm, self._squared_buffer_norm
        return WholeGradient(self.header, self._parameters.vectors, self._buffers.vectors, *norms)

    @property
    def is_complete(self) -> bool:
        """Whether its last byte is there."""
        return self._received == self._total

    def take(self, piece: Piece) -> None:
        """Take the next piece in, and what it adds to the squared norms."""
        size = piece.data.nbytes
        if piece.offset != self._received:
            raise MalformedError(f"a piece stands at {piece.offset}; the next one should at {self._received}")
        if self._has_begun and not size:  # the first one may be, it has the header
            raise MalformedError(f"the piece at {piece.offset} is empty")
        self._has_begun = True
        if self._received + size > self._total:
            raise MalformedError(f"it has more than {self._total} bytes")
        trained = min(max(self._trained_bytes - self._received, 0), size)
        if trained % self.type.itemsize or (size - trained) % torch.float32.itemsize:
            raise MalformedError(f"a piece of {size} bytes at {piece.offset} does not have whole elements")
        if trained:
            self._squared_norm += squared_norm(self._parameters.add(piece.data[:trained]))
            if not self._squared_norm <= LARGEST_SQUARED_NORM:
                raise NotFiniteError(f"it has elements that are not finite, or its norm is above {LARGEST_NORM:g}")
        if size > trained:
            self._squared_buffer_norm += squared_norm(self._buffers.add(piece.data[trained:]))
            if not math.isfinite(self._squared_buffer_norm):
                raise NotFiniteError("it has buffers that are not finite")
        self._received += size
