"""Computes a training again from its log: what its parameters must be if each gradient counted once, or not at all."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dbw_ps.model import FlatModel
from dbw_worker.batches import Batches, Choice
from dbw_worker.gradients import Gradients
from tests import models
from tests.chaos.cluster import BATCH_SIZE
from tests.workers import LEARNING_RATE, first_parameters

TOLERANCE = 0.02  # of norms and parameters: sums of the same numbers in another order, over thousands of iterations


class ReplayError(Exception):
    """The log and what can be computed from it differ."""


def replay(entries: Sequence[Mapping[str, Any]], rogues: Collection[int]) -> Tensor:
    """The parameters of `tests.models:tiny` after all iterations of a log. Rogues send zeros, if anything."""
    data = models.examples()
    batches = Batches(data, Choice(len(data), BATCH_SIZE, seed=0), torch.device("cpu"))
    gradients = Gradients(FlatModel(models.tiny()), nn.functional.cross_entropy)
    parameters = first_parameters()
    for entry in entries:
        version, k = entry["iteration"], entry["k"]
        arrived = [arrival["worker"] for arrival in entry["arrivals"] if arrival["iteration"] == version][:k]
        used = [
            torch.zeros_like(parameters)
            if worker in rogues
            else gradients.compute(parameters, batches.batch(worker, version)).gradient.clone()
            for worker in arrived
        ]
        if len(set(arrived)) != k:
            raise ReplayError(f"iteration {version} has averaged {k} gradients, of workers {arrived}")
        squares = sum(float(gradient.double().norm()) ** 2 for gradient in used)
        if not math.isclose(squares, entry["sum_squared_norms"], rel_tol=TOLERANCE, abs_tol=1e-9):
            logged = entry["sum_squared_norms"]
            raise ReplayError(f"the squared norms of iteration {version} sum up to {squares:g}, in the log {logged:g}")
        parameters = parameters - LEARNING_RATE * torch.stack(used).mean(0)
    return parameters


def differ(one: Tensor, other: Tensor) -> bool:
    """Whether these are the parameters of different trainings."""
    return float((one - other).norm()) > TOLERANCE * float(one.norm())
