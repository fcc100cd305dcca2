"""The mean of an iteration's gradients, and their moments: a running sum, no gradient is kept."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from dbw.v1.parameter_server_pb2 import GradientHeader
from dbw_ps.norms import squared_norm


class Moments(NamedTuple):
    """What the controller learns from an iteration's gradients g_1 … g_k with mean ḡ."""

    mean_squared_norm: float  # ‖ḡ‖²
    sum_squared_norms: float  # Σ‖g_j‖²
    within_worker_variance: float | None  # V(g) as seen inside the workers, where they split their mini-batches, and
    degrees_of_freedom: int  # how much that is worth
    loss: float | None = None  # mean over those that told one


class WholeGradient(NamedTuple):
    """A gradient that is complete."""

    header: GradientHeader  # its worker's loss, and the squared norms of its parts
    parameters: Sequence[torch.Tensor]  # its pieces, in order
    buffers: Sequence[torch.Tensor]  # the pieces of the model's buffers, in order
    squared_norm: float  # ‖g‖²
    squared_buffer_norm: float = 0.0


class Aggregate:
    """Adds up gradients. `gradient` and `buffers` are the flat tensors that the means end up in."""

    def __init__(self, gradient: torch.Tensor, buffers: torch.Tensor, accumulate: torch.dtype = torch.float32) -> None:
        self._gradient, self._buffers = gradient, buffers
        wide = accumulate != gradient.dtype
        self._sum = torch.zeros_like(gradient, dtype=accumulate) if wide else gradient
        self._buffer_sum = torch.zeros_like(buffers, dtype=torch.float64)
        self._reset()

    def _reset(self) -> None:
        self.count = 0
        self._squares = 0.0
        self._within, self._freedom = 0.0, 0

    def add(self, gradient: WholeGradient) -> None:
        """Add a gradient."""
        _add(self._sum, gradient.parameters, self.count == 0)
        _add(self._buffer_sum, gradient.buffers, self.count == 0)
        self.count += 1
        self._squares += gradient.squared_norm
        squares = gradient.header.part_squared_norms
        if (parts := len(squares)) > 1:
            spread = max(sum(squares) - parts * gradient.squared_norm, 0.0)
            self._within += spread / parts  # Σ‖a_j − g‖²/(p(p−1)), times its weight p−1
            self._freedom += parts - 1

    def finish(self) -> Moments:
        """Make means of the sums, and begin again with nothing; returns the moments."""
        assert self.count, "an iteration ends with at least one gradient"
        torch.div(self._sum, self.count, out=self._sum)
        if self._sum is not self._gradient:
            self._gradient.copy_(self._sum)
        self._buffers.copy_(self._buffer_sum.div_(self.count))
        moments = Moments(
            mean_squared_norm=squared_norm(self._sum),
            sum_squared_norms=self._squares,
            within_worker_variance=self._within / self._freedom if self._freedom else None,
            degrees_of_freedom=self._freedom,
        )
        self._reset()
        return moments


def _add(total: torch.Tensor, pieces: Sequence[torch.Tensor], is_first: bool) -> None:
    at = 0
    for piece in pieces:
        part = total[at : at + len(piece)]
        part.copy_(piece) if is_first else part.add_(piece)
        at += len(piece)
