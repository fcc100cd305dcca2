"""Computes gradients of a model on a device."""

from collections.abc import Callable
from contextlib import nullcontext
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from dbw_ps.model import FlatModel
from dbw_worker.batches import Batch
from dbw_worker.interruption import Interruption, never

Loss = Callable[[Tensor, Tensor], Tensor]


class Gradient(NamedTuple):
    """What a mini-batch gives."""

    gradient: Tensor  # float32 on the CPU, followed by the model's buffers; valid until the next is computed
    loss: float  # mean over the mini-batch
    batch_size: int  # in examples
    part_squared_norms: list[float]  # of its parts' gradients, if it was split


class Gradients:
    """Computes gradients of one model.

    With `parts` of two or more the mini-batch is split, and the gradients of the parts tell how much they vary inside
    this worker. That costs a further vector of the model's size, smaller batches for the device and for what
    normalises over a batch.
    """

    def __init__(self, model: FlatModel, loss: Loss, parts: int = 1, autocast: torch.dtype | None = None) -> None:
        self._model, self._loss, self._parts, self._device = model, loss, parts, model.vector.device
        self._precision = nullcontext() if autocast is None else torch.autocast(self._device.type, autocast)
        self._interruption = Interruption(model.module)
        self._total = torch.empty_like(model.gradient) if parts > 1 else torch.empty(0)
        self._outgoing = torch.empty(model.layout.elements, pin_memory=self._device.type == "cuda")
        model.module.train()

    def compute(
        self, vector: Tensor, batch: Batch, stop: Callable[[], bool] = never, closely: bool = False
    ) -> Gradient:
        """The gradient at a vector of parameters and buffers; raises InterruptedComputationError if told to stop.

        On a GPU, it stops within a layer or two only if that is watched closely, which costs a little.
        """
        self._model.vector.copy_(vector)
        with self._interruption.when(stop, closely and self._device.type == "cuda"):
            loss, norms = (self._backward(*batch), []) if self._parts == 1 else self._in_parts(batch)
        trained = self._model.layout.parameter_elements
        self._outgoing[:trained].copy_(self._model.gradient)
        self._outgoing[trained:].copy_(self._model.buffers)
        return Gradient(self._outgoing, loss, len(batch[1]), norms)

    def _in_parts(self, batch: Batch) -> tuple[float, list[float]]:
        size = len(batch[1]) // self._parts
        losses, norms = [], []
        self._total.zero_()
        for part in zip(*(torch.split(tensor, size) for tensor in batch), strict=True):
            losses.append(self._backward(*part))
            norms.append(float(torch.linalg.vector_norm(self._model.gradient, dtype=torch.float64)) ** 2)
            self._total.add_(self._model.gradient, alpha=1 / self._parts)
        self._model.gradient.copy_(self._total)
        return fmean(losses), norms

    def _backward(self, inputs: Tensor, targets: Tensor) -> float:
        """Compute the gradient of the mean loss; returns the loss."""
        self._model.gradient.zero_()
        with self._precision:
            loss = self._loss(self._model.module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()
