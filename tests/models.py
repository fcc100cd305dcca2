"""Models, data and a loss for tests; parameter servers and workers find them by `tests.models:NAME`."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def tiny() -> nn.Module:
    """A few parameters, no buffers."""
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def normalised() -> nn.Module:
    """A model with buffers."""
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def large() -> nn.Module:
    """A few megabytes: gradients come in several pieces."""
    return nn.Linear(1000, 1200)


def resnet_sized() -> nn.Module:
    """As many parameters as ResNet-18, 45 MB."""
    model = nn.Linear(1, 1, bias=False)
    model.weight = nn.Parameter(torch.zeros(1, 11_181_642))
    return model


def examples() -> TensorDataset:
    """What `tiny` and `normalised` can learn: which of three directions is nearest."""
    random = torch.Generator().manual_seed(5)
    inputs = torch.randn(200, 5, generator=random)
    return TensorDataset(inputs, (inputs @ torch.randn(5, 3, generator=random)).argmax(1))


def margin_loss(output: Tensor, target: Tensor) -> Tensor:
    """A loss that is not built in."""
    return nn.functional.multi_margin_loss(output, target)
