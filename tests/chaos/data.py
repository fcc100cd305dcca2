"""What trainings under chaos learn: data that hangs when the nemesis says so, and a model whose gradients are long."""

import os
import time
from pathlib import Path

from torch import Tensor, nn
from torch.utils.data import Dataset

from tests import models

HANG_WHILE = "CHAOS_HANG_WHILE"  # the variable that names a file; while it exists, examples are not to be had


class HangingExamples(Dataset[tuple[Tensor, Tensor]]):
    """The examples that `tests.models:tiny` can learn, on storage that hangs while a file exists."""

    def __init__(self) -> None:
        self._examples, self._file = models.examples(), Path(os.environ[HANG_WHILE])

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        while self._file.exists():
            time.sleep(0.05)
        inputs, target = self._examples[index]
        return inputs, target


def long_model() -> nn.Module:
    """Gradients of 2.7 MB, which take their turns."""
    return nn.Sequential(nn.Linear(5, 75_000), nn.Tanh(), nn.Linear(75_000, 3))
