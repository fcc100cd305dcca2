"""How good a model is."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

BATCH_SIZE = 1000


@torch.no_grad()
def accuracy(model: nn.Module, examples: TensorDataset) -> float:
    """The share of examples that a classifier gets right."""
    model.eval()
    inputs, targets = examples.tensors
    batches = zip(torch.split(inputs, BATCH_SIZE), torch.split(targets, BATCH_SIZE), strict=True)
    right = sum(int((model(some).argmax(1) == wanted).sum()) for some, wanted in batches)
    return right / len(targets)
