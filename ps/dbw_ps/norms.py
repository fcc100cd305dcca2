"""Squared norms of gradients, which every gradient's arrival waits for."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dbw_controller.core.kernels import COMPILED, Column, compiled, direct

# Of this many elements a copy in double precision stays in the cache, and PyTorch does not wake other threads for it.
BLOCK = 2**14


@partial(compiled, fastmath={"reassoc", "contract"})  # in any order, so that the processor adds several at once
def _sum_of_squares(elements: Column) -> float:
    total = 0.0
    for i in range(len(elements)):
        element = np.float64(elements[i])
        total += element * element
    return total


@cache
def _kernel() -> Callable[[Any], float]:
    """The kernel, for float32 at any address: pieces of messages may begin anywhere."""
    return direct(_sum_of_squares, np.frombuffer(bytes(9), np.uint8)[1:].view(np.float32))


def squared_norm(vector: Tensor) -> float:
    """‖v‖² of a vector of any type, in double precision; it is not finite if an element is not."""
    if COMPILED and vector.dtype != torch.float64:
        return _kernel()(vector.float().numpy())
    total = 0.0
    for block in torch.split(vector, BLOCK):
        wide = block.to(torch.float64)
        total += float(torch.dot(wide, wide))
    return total


def warm_up() -> None:
    """Compile what needs compiling, rather than when the first gradient waits for it."""
    squared_norm(torch.zeros(1))
