"""Stops a gradient's computation between two layers."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

AHEAD = 2  # how many layers may be queued on a GPU while one is computed there


class InterruptedComputationError(Exception):
    """There was a reason to stop."""


def never() -> bool:
    """No reason to stop."""
    return False


class Interruption:
    """Checks a module's computation for a reason to stop: on the way forward before every layer, on the way back after
    every parameter's gradient. So a computation goes on for about a layer, and no thread is killed.

    The hooks are on parameters rather than on modules on the way back because those wrap a layer's output, which
    layers that work in place, as in ResNet, do not survive.
    """

    def __init__(self, module: nn.Module) -> None:
        self._reason: Callable[[], bool] = never
        self._closely = False
        self._queued: deque[torch.cuda.Event] = deque()
        for layer in module.modules():
            layer.register_forward_pre_hook(self._check)
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._check)  # type: ignore[no-untyped-call]

    @contextmanager
    def when(self, reason: Callable[[], bool], on_gpu: bool = False) -> Iterator[None]:
        """Raise InterruptedComputationError in what is computed in this block as soon as there is a reason to.

        A GPU is given its layers long before it computes them: to stop there, we must not be far ahead of it.
        """
        self._reason, self._closely = reason, on_gpu
        try:
            yield
        finally:
            self._reason, self._closely = never, False
            self._queued.clear()

    def _check(self, *_: object) -> None:
        if torch.compiler.is_compiling():  # it would be compiled again for every reason
            return
        if self._closely:
            self._queued.append(torch.cuda.current_stream().record_event())
            if len(self._queued) > AHEAD:
                self._queued.popleft().synchronize()
        if self._reason():
            raise InterruptedComputationError
