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
