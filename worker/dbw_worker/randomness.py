"""One seed for everything that users' models and data sets may draw from."""

import random

import numpy as np
import torch


def seed_all(seed: int, device: torch.device) -> None:
    """Seed Python, numpy and PyTorch with 64 bits; `torch.manual_seed` would add a third to a small gradient's time."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)
