"""A model as flat vectors, which is how it travels, and the place that it comes from."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dbw_ps.models import MODELS
from dbw_runtime.configuration import WrongValueError
from dbw_runtime.plugins import Plugin


class TensorSpec(NamedTuple):
    """One tensor of a model."""

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """How a model's tensors follow each other in a flat vector: parameters, then floating-point buffers.

    Integer buffers, such as the number of batches that a normalisation has seen, are not part of it.
    """

    parameters: tuple[TensorSpec, ...]
    buffers: tuple[TensorSpec, ...]

    @property
    def parameter_elements(self) -> int:
        """How many numbers the parameters have."""
        return sum(spec.elements for spec in self.parameters)

    @property
    def buffer_elements(self) -> int:
        """How many numbers the buffers have."""
        return sum(spec.elements for spec in self.buffers)

    @property
    def elements(self) -> int:
        """How many elements a vector has."""
        return self.parameter_elements + self.buffer_elements

    def difference(self, other: "Layout") -> str | None:
        """What is wrong with another layout when this one is expected: the first thing, in words; None if nothing."""
        parameters = _difference("parameter", self.parameters, other.parameters)
        return parameters or _difference("buffer", self.buffers, other.buffers)


def _difference(kind: str, expected: Iterable[TensorSpec], found: Iterable[TensorSpec]) -> str | None:
    wanted, given = dict(expected), dict(found)
    for name in wanted:
        if name not in given:
            return f"the {kind} {name} is missing"
    for name in given:
        if name not in wanted:
            return f"the {kind} {name} is not expected"
    for name, other in zip(wanted, given, strict=True):
        if name != other:
            return f"the {kind} {other} comes where {name} is expected"
        if wanted[name] != given[name]:
            return f"the {kind} {name} has the shape {given[name]} instead of {wanted[name]}"
    return None


class FlatModel:
    """A module whose parameters and buffers are views of one flat float32 vector, its gradients of another.

    What changes a vector changes the module, and the other way round, as long as both write in place. So clear the
    gradient with `gradient.zero_()`: `zero_grad()` would take the views away. A tensor that a module has under two
    names is in the vectors once, under the first.

    Frozen parameters (`requires_grad=False`) have a place among the parameters, so that workers and checkpoints get
    them; their gradient is zero and `grad` stays None, which makes optimisers leave them alone, weight decay included.
    Among the buffers they would be averaged over the workers in each iteration, and drift by rounding.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        _check_tensors(parameters, buffers)
        buffers = {name: buffer for name, buffer in buffers.items() if buffer.is_floating_point()}
        self.module = module
        self.layout = Layout(_specs(parameters), _specs(buffers))
        self.vector = _joined([*parameters.values(), *buffers.values()], device)
        self.parameters = self.vector[: self.layout.parameter_elements]
        self.buffers = self.vector[self.layout.parameter_elements :]
        self.gradient = torch.zeros_like(self.parameters)
        module.to(device).float()  # for what modules convert beside their own tensors; these are there by now
        gradients = torch.split(self.gradient, [spec.elements for spec in self.layout.parameters])
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad = gradient.view(parameter.shape) if parameter.requires_grad else None

    def state_dict(self) -> dict[str, Any]:
        """Copy the module's state as plain PyTorch has it: `build().load_state_dict` takes it."""
        state = self.module.state_dict()
        for name, value in state.items():  # in place, because PyTorch has versions of modules attached to it
            state[name] = value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take values over from a state dict. If it is of another model, raise ValueError and change nothing."""
        difference = _difference("tensor", _sorted_specs(self.module.state_dict()), _sorted_specs(state))
        if difference is not None:
            advice = "load it with the model that it was saved with"
            raise ValueError(f"the state is of another model: {difference}; {advice}")
        self.module.load_state_dict(state)


def _check_tensors(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
    """Refuse what cannot be a view of a float32 vector."""
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ValueError("the model has nothing to train: at least one parameter must require a gradient")
    places: dict[int, str] = {}
    for name, tensor in (*parameters.items(), *buffers.items()):
        if is_lazy(tensor):
            raise ValueError(f"{name} has no shape yet: run the model once on an example before returning it")
        if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized:
            kind = "on the device meta" if tensor.is_meta else "quantised" if tensor.is_quantized else tensor.layout
            raise ValueError(f"{name} is {kind}; the tensors of a model must be dense ones with values")
        if tensor.is_complex() or (name in parameters and not tensor.is_floating_point()):
            raise ValueError(f"{name} is of the type {tensor.dtype}; it must be a floating-point type")
        if tensor.numel() and places.setdefault(tensor.data_ptr(), name) != name:
            # Given places of their own, they would silently go different ways.
            twin = places[tensor.data_ptr()]
            raise ValueError(f"{twin} and {name} share memory; to tie them, make them the same object")


def _specs(tensors: Mapping[str, Tensor]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, tuple(tensor.shape)) for name, tensor in tensors.items())


def _sorted_specs(state: Mapping[str, Any]) -> list[TensorSpec]:
    """What a state dict holds. The order does not matter there, and a module's extra state has no shape."""
    return sorted(TensorSpec(name, tuple(getattr(value, "shape", ()))) for name, value in state.items())


def _joined(tensors: Sequence[Tensor], device: torch.device | str) -> Tensor:
    """Make tensors views of a new vector that has their values."""
    vector = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=torch.float32, device=device)
    for tensor, place in zip(tensors, torch.split(vector, [tensor.numel() for tensor in tensors]), strict=True):
        view = place.view(tensor.shape)
        view.copy_(tensor.data)
        tensor.data = view
    return vector


def load_flat_model(place: str, device: torch.device | str = "cpu") -> FlatModel:
    """Build a model that can be trained here."""
    try:
        return FlatModel(load_model(place), device)
    except ValueError as error:
        raise WrongValueError("model", place, f"one that can be trained here: {error}") from error


def load_model(place: str) -> nn.Module:
    """Build a model: one of ours by its name, or a user's by the place of a function that returns it."""
    what = "a function without arguments that returns an nn.Module"
    return Plugin("model", place, what, MODELS).build(nn.Module)
