"""Tensors and the bytes under them, without copies."""

import warnings
from typing import Any

import torch
from torch import Tensor

with warnings.catch_warnings():
    # PyTorch warns, once, that it would let us write to bytes that must not change. We never do.
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


def bytes_of(vector: Tensor) -> memoryview:
    """The bytes of a contiguous vector on the CPU."""
    array: Any = vector.view(torch.uint8).numpy()
    return memoryview(array)


def vector_over(data: memoryview, kind: torch.dtype) -> Tensor:
    """A vector over bytes, to be read only."""
    return torch.frombuffer(data, dtype=kind)


def squared_norm(vector: Tensor) -> float:
    """‖v‖² of a vector of any type, in double precision; it is not finite if an element is not."""
    total = 0.0
    for block in torch.split(vector, 2**18):  # whose copy in double precision stays in the cache
        wide = block.to(torch.float64)
        total += float(torch.dot(wide, wide))
    return total
