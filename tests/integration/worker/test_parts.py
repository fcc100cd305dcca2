"""Workers that compute in parts tell how much gradients vary inside a mini-batch."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dbw_ps.training_log import read
from dbw_worker.batches import Choice
from tests import models
from tests.integration.worker.runs import trained
from tests.workers import LEARNING_RATE, first_parameters


def gradients_in_parts(parameters: Tensor, indices: Tensor, parts: int) -> Tensor:
    """The gradient of each part of a mini-batch of `models.examples`, in double precision, a row each."""
    model, (inputs, targets) = models.tiny().double(), models.examples()[indices]
    torch.nn.utils.vector_to_parameters(parameters, model.parameters())
    rows = []
    for some, wanted in zip(inputs.double().chunk(parts), targets.chunk(parts), strict=True):
        loss = torch.nn.functional.cross_entropy(model(some), wanted)
        rows.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


@pytest.mark.parametrize(("workers", "parts"), [(1, 2), (1, 4), (2, 2)])
def test_paper_the_variance_inside_mini_batches_is_that_of_its_definition_also_for_one_gradient(
    workers: int, parts: int, tmp_path: Path
) -> None:
    """V(g) = Σ‖a_j − g‖²/(p(p − 1)) of the p parts' gradients a_j with mean g, averaged over the workers."""
    choice, parameters = Choice(200, 16, 7), first_parameters().double()
    final = trained(tmp_path, 7, workers, ("--parts", str(parts)))
    for entry in read(tmp_path / "log"):
        gradients, variances = [], []
        for number in range(workers):
            indices = torch.from_numpy(choice.indices(number, entry["iteration"]))
            rows = gradients_in_parts(parameters, indices, parts)
            gradients.append(rows.mean(0))
            variances.append(float((rows - rows.mean(0)).square().sum()) / (parts * (parts - 1)))
        assert entry["k"] == workers
        assert entry["degrees_of_freedom"] == workers * (parts - 1)
        assert entry["within_worker_variance"] == pytest.approx(sum(variances) / workers, rel=1e-3)
        parameters -= LEARNING_RATE * torch.stack(gradients).mean(0)
    assert torch.allclose(final.double(), parameters, atol=1e-4), "and so is the training"


def test_without_parts_nothing_is_said_of_it(tmp_path: Path) -> None:
    trained(tmp_path, 7)
    for entry in read(tmp_path / "log"):
        assert (entry["within_worker_variance"], entry["degrees_of_freedom"]) == (None, 0)
