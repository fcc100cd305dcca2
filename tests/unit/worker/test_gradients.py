from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from dbw_ps.model import FlatModel
from dbw_ps.models import mlp
from dbw_worker.batches import Batch
from dbw_worker.gradients import Gradients
from dbw_worker.interruption import InterruptedComputationError
from dbw_worker.randomness import seed_all
from tests.models import normalised, tiny

EXAMPLES = 24


def batch(features: int = 5, classes: int = 3) -> Batch:
    random = torch.Generator().manual_seed(5)
    inputs = torch.randn(EXAMPLES, features, generator=random)
    return inputs, torch.randint(classes, (EXAMPLES,), generator=random)


def plain_gradient(build: Callable[[], nn.Module], vector: Tensor, examples: Batch) -> tuple[Tensor, float]:
    """What PyTorch itself says."""
    model = build()
    parameters = list(model.parameters())
    torch.nn.utils.vector_to_parameters(vector[: sum(p.numel() for p in parameters)], parameters)
    loss = cross_entropy(model(examples[0]), examples[1])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]), loss.item()


@pytest.mark.parametrize("parts", [1, 2, 3, EXAMPLES])
def test_the_gradient_is_that_of_the_mean_loss_in_however_many_parts(parts: int) -> None:
    gradients = Gradients(FlatModel(tiny()), cross_entropy, parts)
    for seed in range(3):
        vector = torch.randn(FlatModel(tiny()).layout.elements, generator=torch.Generator().manual_seed(seed))
        expected, loss = plain_gradient(tiny, vector, batch())
        found = gradients.compute(vector, batch())
        assert torch.allclose(found.gradient, expected, atol=1e-6)
        assert found.loss == pytest.approx(loss, rel=1e-5)
        assert found.batch_size == EXAMPLES
        assert len(found.part_squared_norms) == (parts if parts > 1 else 0)


def test_the_parts_norms_are_those_of_their_own_gradients() -> None:
    model = FlatModel(tiny())
    vector = model.vector.clone()
    inputs, targets = batch()
    found = Gradients(model, cross_entropy, 3).compute(vector, (inputs, targets))
    for i, norm in enumerate(found.part_squared_norms):
        part = slice(8 * i, 8 * i + 8)
        expected, _ = plain_gradient(tiny, vector, (inputs[part], targets[part]))
        assert norm == pytest.approx(float(expected.square().sum()), rel=1e-5)


def test_the_models_buffers_follow_the_gradient() -> None:
    model = FlatModel(normalised())
    before = model.vector.clone()
    found = Gradients(model, cross_entropy).compute(before, batch())
    trained = model.layout.parameter_elements
    assert len(found.gradient) == model.layout.elements
    assert torch.equal(found.gradient[trained:], model.buffers)
    assert not torch.equal(found.gradient[trained:], before[trained:]), "training has moved the running means"


def test_what_a_model_draws_at_random_follows_from_the_seed() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 16), nn.Dropout(), nn.Linear(16, 3))

    model = FlatModel(build())
    gradients, vector = Gradients(model, cross_entropy), model.vector.clone()

    def seeded(seed: int) -> Tensor:
        seed_all(seed, vector.device)
        return gradients.compute(vector, batch()).gradient.clone()

    first, same, other = seeded(1), seeded(1), seeded(2)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_an_interrupted_gradient_leaves_nothing_behind() -> None:
    model = FlatModel(mlp())
    vector = model.vector.clone()
    examples = batch(64, 10)
    for parts in (1, 2):
        gradients = Gradients(model, cross_entropy, parts)
        expected = gradients.compute(vector, examples).gradient.clone()
        checks = iter(range(100))
        with pytest.raises(InterruptedComputationError):
            gradients.compute(vector, examples, lambda checks=checks: next(checks) >= 5)  # type: ignore[misc]
        assert torch.equal(gradients.compute(vector, examples).gradient, expected)


def test_any_loss_can_be_used() -> None:
    model = FlatModel(nn.Linear(5, 1))
    inputs, targets = batch()[0], torch.zeros(EXAMPLES, 1)
    assert Gradients(model, mse_loss).compute(model.vector.clone(), (inputs, targets)).loss == pytest.approx(
        mse_loss(model.module(inputs), targets).item(), rel=1e-6
    )


def test_mixed_precision_computes_nearly_the_same_gradient() -> None:
    model = FlatModel(tiny())
    vector = model.vector.clone()
    expected, _ = plain_gradient(tiny, vector, batch())
    found = Gradients(model, cross_entropy, autocast=torch.bfloat16).compute(vector, batch()).gradient
    assert found.dtype == torch.float32
    assert 0 < float((found - expected).norm() / expected.norm()) < 0.05, "bfloat16 has 8 bits"
