from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dbw_ps.models import resnet18
from dbw_worker.interruption import InterruptedComputationError, Interruption

LAYERS = 6


class Counted(torch.autograd.Function):
    """The identity; counts how often it is computed, forward and backward."""

    @staticmethod
    def forward(context: "torch.autograd.function.FunctionCtx", values: Tensor, counts: list[int]) -> Tensor:
        context.counts = counts  # type: ignore[attr-defined]
        counts[0] += 1
        return values.clone()

    @staticmethod
    def backward(context: "torch.autograd.function.FunctionCtx", *gradients: Tensor) -> tuple[Tensor, None]:
        context.counts[1] += 1  # type: ignore[attr-defined]
        return gradients[0], None


class Layer(nn.Linear):
    """A layer that counts its computations."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__(4, 4)
        self.counts = counts

    def forward(self, values: Tensor) -> Tensor:
        counted: Tensor = Counted.apply(super().forward(values), self.counts)  # type: ignore[no-untyped-call]
        return counted


def counted_model() -> tuple[nn.Module, list[int]]:
    counts = [0, 0]
    return nn.Sequential(*(Layer(counts) for _ in range(LAYERS))), counts


def after(checks: int) -> Callable[[], bool]:
    """A reason to stop at the check after so many."""
    seen = iter(range(10**6))
    return lambda: next(seen) >= checks


def compute(model: nn.Module, interruption: Interruption, reason: Callable[[], bool]) -> None:
    with interruption.when(reason):
        model(torch.ones(1, 4)).sum().backward()


def test_a_computation_without_a_reason_to_stop_is_whole() -> None:
    model, counts = counted_model()
    compute(model, Interruption(model), lambda: False)
    assert counts == [LAYERS, LAYERS]


@pytest.mark.parametrize("layers", range(LAYERS))
def test_it_stops_before_the_next_layer_on_the_way_forward(layers: int) -> None:
    model, counts = counted_model()
    with pytest.raises(InterruptedComputationError):
        compute(model, Interruption(model), lambda: counts[0] >= layers)
    assert counts == [layers, 0]


@pytest.mark.parametrize("layers", range(1, LAYERS + 1))
def test_it_stops_within_one_layer_on_the_way_back(layers: int) -> None:
    model, counts = counted_model()
    with pytest.raises(InterruptedComputationError):
        compute(model, Interruption(model), lambda: counts[1] >= layers)
    assert counts == [LAYERS, layers]


def test_after_an_interruption_the_next_computation_is_whole_and_right() -> None:
    model, counts = counted_model()
    interruption = Interruption(model)
    compute(model, interruption, lambda: False)
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    for checks in range(3 * LAYERS):
        with pytest.raises(InterruptedComputationError):
            compute(model, interruption, after(checks))
    model.zero_grad()
    counts[:] = [0, 0]
    compute(model, interruption, lambda: False)
    assert counts == [LAYERS, LAYERS]
    found = [parameter.grad for parameter in model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True) if other is not None)


def test_outside_of_its_block_a_reason_does_not_count() -> None:
    model, counts = counted_model()
    with Interruption(model).when(lambda: True):
        pass
    model(torch.ones(1, 4)).sum().backward()
    assert counts == [LAYERS, LAYERS]


def test_layers_that_work_in_place_can_be_interrupted_anywhere() -> None:
    model = resnet18()
    checks = 0

    def count() -> bool:
        nonlocal checks
        checks += 1
        return False

    interruption = Interruption(model)
    images = torch.zeros(2, 3, 32, 32)
    with interruption.when(count):
        model(images).sum().backward()
    assert checks > 120, "before each of its layers, and after each of its gradients"
    for at in (0, checks // 4, checks // 2, checks - 1):
        with pytest.raises(InterruptedComputationError), interruption.when(after(at)):
            model(images).sum().backward()
