"""One seed for everything that users' models and data sets may draw from."""

import random

import numpy as np
import torch
from numpy.random import Generator


def seed_all(seed: int, device: torch.device) -> None:
    """Seed Python, numpy and PyTorch with 64 bits; `torch.manual_seed` would add a third to a small gradient's time."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)


def draws_of(seed: int, worker: int, version: int) -> tuple[int, Generator]:
    """What is random about a worker's gradient of a version: the seed of its computation, and where its delay is from.

    A training can be repeated so, and neither an interruption nor a restart changes what comes after it.
    """
    random = np.random.default_rng((seed, worker, version, 1))
    return int(random.integers(2**63)), random
