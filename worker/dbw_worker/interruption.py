"""Stops a gradient's computation between two layers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn


class InterruptedComputationError(Exception):
    """There was a reason to stop."""


def never() -> bool:
    """No reason to stop."""
    return False


class Interruption:
    """Checks a module's computation for a reason to stop: on the way forward before every layer, on the way back after
    every parameter's gradient. So a computation goes on for one layer at most, and no thread is killed.

    The hooks are on parameters rather than on modules on the way back because those wrap a layer's output, which
    layers that work in place, as in ResNet, do not survive.
    """

    def __init__(self, module: nn.Module) -> None:
        self._reason: Callable[[], bool] = never
        for layer in module.modules():
            layer.register_forward_pre_hook(self._check)
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._check)  # type: ignore[no-untyped-call]

    @contextmanager
    def when(self, reason: Callable[[], bool]) -> Iterator[None]:
        """Raise InterruptedComputationError in what is computed in this block as soon as there is a reason to."""
        self._reason = reason
        try:
            yield
        finally:
            self._reason = never

    def _check(self, *_: object) -> None:
        if self._reason():
            raise InterruptedComputationError
