"""Models for tests of the parameter server; it builds them by `tests.models:NAME`."""

import torch
from torch import nn


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
