"""What is learnt is what plain PyTorch learns from the same mini-batches."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from dbw_experiments.laboratory.learning import Learner, Learnt, Replay, mislabelled, try_out
from dbw_experiments.laboratory.runs import Run
from dbw_ps.model import load_model
from dbw_runtime.configuration import UsageError
from dbw_worker.batches import Choice
from dbw_worker.datasets import Data, default_folder, load

CPU = torch.device("cpu")
RUN = Run(model="mlp", dataset="digits", workers=4, batch=16, policy="static:2", rate=0.1, delay="constant:1", seed=7)
WHO = [(0, 1), (0, 1, 2, 3), (2,), (0, 1, 2), (3, 1), (0, 1, 2, 3)]  # whose gradients some steps use
STANDARD_ERRORS = 5

# Batch normalisation with running statistics that soon differ between workers.
NORMALISED = """
from torch import nn

def model():
    return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16, momentum=0.5), nn.ReLU(), nn.Linear(16, 10))
"""

DROPPING = """
from torch import nn

def model():
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))
"""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As the laboratory has it: nothing depends on how sums are divided between threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def digits() -> Data:
    return load("digits", default_folder())


def learnt(run: Run, steps: Sequence[Sequence[int]] = WHO) -> list[Learnt]:
    learner = Learner(run, CPU)
    return [learner.step(workers) for workers in steps]


class Step(NamedTuple):
    """What a step should give."""

    loss: float
    mean_squared_norm: float
    sum_squared_norms: float
    accuracy: float  # before it


class Plain:
    """Stochastic gradient descent in plain PyTorch; the rate may depend on the iteration and on k."""

    def __init__(
        self, run: Run, data: Data, momentum: float = 0.0, factor: Callable[[int, int], float] = lambda _, __: 1.0
    ) -> None:
        torch.manual_seed(run.seed)
        self._rate, self._data, self._momentum, self._factor = run.rate, data, momentum, factor
        labels = data.train.tensors[1].numpy() if run.split == "by-label" else None
        self._choice = Choice(len(data.train), run.batch, run.seed, run.workers if run.split else 1, labels)
        self.model = load_model(run.model)
        self._velocity = [torch.zeros_like(parameter) for parameter in self.model.parameters()]
        self._version = 0

    def step(self, workers: Sequence[int], average_buffers: bool = True) -> Step:
        """Average the gradients of these workers, and go down along their mean."""
        accuracy = self._accuracy()
        before = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        losses, gradients, buffers = [], [], []
        for worker in workers:
            self._set(before)
            inputs, targets = self._data.train[torch.from_numpy(self._choice.indices(worker, self._version))]
            loss = cross_entropy(self.model(inputs), targets)
            gradients.append(torch.autograd.grad(loss, list(self.model.parameters())))
            losses.append(loss.item())
            buffers.append({name: buffer.clone() for name, buffer in self.model.named_buffers()})
        mean = [sum(parts, torch.tensor(0.0)) / len(workers) for parts in zip(*gradients, strict=True)]
        rate = self._rate * self._factor(self._version, len(workers))
        with torch.no_grad():
            for parameter, velocity, gradient in zip(self.model.parameters(), self._velocity, mean, strict=True):
                parameter.sub_(rate * velocity.mul_(self._momentum).add_(gradient))
        if average_buffers:
            self._set({name: sum(one[name] for one in buffers) / len(workers) for name in before})
        self._version += 1
        return Step(sum(losses) / len(losses), norm(mean), sum(norm(gradient) for gradient in gradients), accuracy)

    def _set(self, values: dict[str, Any]) -> None:
        for name, buffer in self.model.named_buffers():
            buffer.copy_(values[name])

    def _accuracy(self) -> float:
        inputs, targets = self._data.held_out.tensors
        self.model.eval()
        with torch.no_grad():
            right = int((self.model(inputs).argmax(1) == targets).sum())
        self.model.train()
        return right / len(targets)


def norm(gradient: Sequence[Tensor]) -> float:
    """‖g‖²."""
    return sum(float((part.double() ** 2).sum()) for part in gradient)


def assert_the_same(found: Learnt, expected: Step) -> None:
    """But for rounding, which differs by the order of sums."""
    assert found.moments.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.moments.mean_squared_norm == pytest.approx(expected.mean_squared_norm, rel=1e-4)
    assert found.moments.sum_squared_norms == pytest.approx(expected.sum_squared_norms, rel=1e-4)


SPLITS = pytest.mark.parametrize("split", [False, True, "by-label"], ids=["all", "split", "by label"])
Split = bool | Literal["by-label"]


@SPLITS
@pytest.mark.parametrize(("seed", "rate"), [(0, 0.1), (7, 0.5)])
def test_a_step_is_that_of_plain_stochastic_gradient_descent(
    digits: Data, split: Split, seed: int, rate: float
) -> None:
    run = replace(RUN, split=split, seed=seed, rate=rate)
    plain = Plain(run, digits)
    for workers, found in zip(WHO, learnt(run), strict=True):
        assert_the_same(found, plain.step(workers))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("schedule", [None, "steplr:step_size=2,gamma=0.5"])
@pytest.mark.parametrize("exponent", [0.0, 0.5])
def test_momentum_schedule_and_k_change_the_steps_and_the_rates_that_are_told(
    digits: Data, momentum: float, schedule: str | None, exponent: float
) -> None:
    def factor(version: int, k: int) -> float:
        return (0.5 ** (version // 2) if schedule else 1.0) * math.pow(k / RUN.workers, exponent)

    optimizer = f"sgd:momentum={momentum}" if momentum else "sgd"
    run = replace(RUN, optimizer=optimizer, schedule=schedule, rate_exponent=exponent)
    plain = Plain(run, digits, momentum, factor)
    for version, (workers, found) in enumerate(zip(WHO, learnt(run), strict=True)):
        assert_the_same(found, plain.step(workers))
        rate = run.rate * factor(version, len(workers))
        assert found.learning_rate == pytest.approx(rate)
        assert found.effective_learning_rate == pytest.approx(rate / (1 - momentum))


def test_any_optimiser_of_the_parameter_server_can_be_used() -> None:
    """How far Adam goes is measured in its first step, and not known before."""
    found = learnt(replace(RUN, optimizer="adam:betas=0.8/0.99", rate=0.01), [range(4)] * 100)
    assert {one.learning_rate for one in found} == {0.01}
    assert found[0].effective_learning_rate is None
    assert all(one.effective_learning_rate is not None for one in found[1:11])
    assert np.mean([one.moments.loss for one in found[-5:]]) < 0.5


def test_the_model_learns() -> None:
    losses = [step.moments.loss or 0.0 for step in learnt(RUN, [range(4)] * 100)]
    assert np.mean(losses[:5]) > 2.0
    assert np.mean(losses[-5:]) < 0.5


@SPLITS
def test_it_matters_whose_gradients_are_used(split: Split) -> None:
    run = replace(RUN, split=split)
    assert learnt(run, [(0, 1)])[0] != learnt(run, [(0, 2)])[0]


def test_workers_have_other_examples_where_data_are_split() -> None:
    assert learnt(RUN, [(1,)])[0] != learnt(replace(RUN, split=True), [(1,)])[0]


def test_workers_know_few_classes_where_data_are_split_by_label() -> None:
    """One alone teaches hardly anything but these: with ten classes and ten workers, one or two."""
    alone = [learnt(replace(RUN, workers=10, split=split), [(3,)] * 60)[-1] for split in (True, "by-label")]
    random, by_label = (one.moments.loss or 0.0 for one in alone)
    assert by_label < 0.1 * random
    run = replace(RUN, workers=10, split="by-label", target_every=60)
    assert (learnt(run, [(3,)] * 61)[60].loss or 0.0) > 2.0  # of all examples


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_label_noise_replaces_a_share_of_the_labels(digits: Data, share: float) -> None:
    """One in ten random classes is the right one; five standard deviations of that are allowed."""
    before = digits.train.tensors[1].clone()
    inputs, labels = mislabelled(digits, share, seed=1).train.tensors
    replaced = round(share * len(labels))
    changed = int((labels != before).sum())
    assert changed == pytest.approx(0.9 * replaced, abs=STANDARD_ERRORS * math.sqrt(0.9 * 0.1 * replaced))
    assert changed <= replaced
    drawn = np.bincount(labels[labels != before].numpy(), minlength=10)
    assert drawn == pytest.approx(changed / 10, abs=STANDARD_ERRORS * math.sqrt(changed / 10))
    assert inputs is digits.train.tensors[0]
    assert torch.equal(digits.train.tensors[1], before)  # others go on with these


def test_label_noise_follows_from_the_seed_and_leaves_held_out_examples_alone(digits: Data) -> None:
    first, again, other = (mislabelled(digits, 0.3, seed) for seed in (1, 1, 2))
    assert torch.equal(first.train.tensors[1], again.train.tensors[1])
    assert not torch.equal(first.train.tensors[1], other.train.tensors[1])
    assert first.held_out is digits.held_out
    assert mislabelled(digits, 0.0, 1) is digits


def test_label_noise_is_the_same_for_all_policies_and_in_all_that_is_measured(digits: Data) -> None:
    run = replace(RUN, label_noise=0.4, accuracy_every=1, target_every=1)
    noisy = mislabelled(digits, 0.4, run.seed)
    plain = Plain(run, noisy)
    found = learnt(run)
    inputs, labels = noisy.train.tensors
    for workers, one in zip(WHO, found, strict=True):
        with torch.no_grad():
            loss = cross_entropy(plain.model(inputs), labels).item()
        assert one.loss == pytest.approx(loss, rel=1e-5)  # there are fewer examples than it is measured on
        expected = plain.step(workers)
        assert_the_same(one, expected)
        assert one.accuracy == pytest.approx(expected.accuracy, abs=2 / len(digits.held_out))
    assert learnt(replace(run, policy="dbw", rule="largest", delay="exp:1")) == found
    assert learnt(replace(RUN, accuracy_every=1, target_every=1))[0].loss != found[0].loss  # runs after it are clean


def test_moments_tell_how_gradients_vary() -> None:
    """‖ḡ‖² ≤ Σ‖g‖²/k, with equality for one gradient."""
    for workers, found in zip(WHO, learnt(RUN), strict=True):
        mean_of_squares = found.moments.sum_squared_norms / len(workers)
        if len(workers) == 1:
            assert found.moments.mean_squared_norm == pytest.approx(mean_of_squares, rel=1e-6)
        else:
            assert found.moments.mean_squared_norm < mean_of_squares


def test_running_statistics_are_averaged_over_the_workers_that_are_used(digits: Data, tmp_path: Path) -> None:
    """They show where the model is judged, on held-out examples, and nowhere else."""
    (tmp_path / "normalised.py").write_text(NORMALISED)
    run = replace(RUN, model=f"{tmp_path / 'normalised.py'}:model", batch=4, accuracy_every=1)
    found = learnt(run)
    plain, careless = Plain(run, digits), Plain(run, digits)
    expected = [plain.step(workers) for workers in WHO]
    for one, other in zip(found, expected, strict=True):
        assert_the_same(one, other)
    few = 2 / len(digits.held_out)  # that rounding may turn
    assert [one.accuracy for one in found] == pytest.approx([one.accuracy for one in expected], abs=few)
    # The last worker's statistics would give something else, so that this test can tell.
    wrong = [careless.step(workers, average_buffers=False).accuracy for workers in WHO]
    assert [one.accuracy for one in found] != pytest.approx(wrong, abs=few)


def test_accuracy_is_measured_every_so_many_iterations_before_these(digits: Data) -> None:
    run = replace(RUN, accuracy_every=3)
    plain = Plain(run, digits)
    steps = [(0, 1, 2, 3)] * 8
    expected = [plain.step(workers).accuracy for workers in steps]
    found = [one.accuracy for one in learnt(run, steps)]
    assert [version for version, share in enumerate(found) if share is not None] == [0, 3, 6]
    assert found[::3] == pytest.approx(expected[::3], abs=1e-6)
    assert len(set(expected)) > 3  # it changes all the time


def test_exact_values_are_computed_in_pairs_of_iterations() -> None:
    found = [one.exact for one in learnt(replace(RUN, batch=500, exact_every=4), [(0,)] * 10)]
    assert [version for version, exact in enumerate(found) if exact is not None] == [0, 1, 4, 5, 8, 9]


@pytest.mark.parametrize("model", ["mlp", "normalised"])
def test_measurements_do_not_change_what_is_learnt_to_the_bit(tmp_path: Path, model: str) -> None:
    (tmp_path / "normalised.py").write_text(NORMALISED)
    run = RUN if model == "mlp" else replace(RUN, model=f"{tmp_path / 'normalised.py'}:model")
    plain = learnt(run)
    assert all(one.accuracy is None and one.exact is None for one in plain)
    for measured in (replace(run, accuracy_every=1), replace(run, exact_every=1), replace(run, exact_every=3)):
        assert [one.moments for one in learnt(measured)] == [one.moments for one in plain]


def test_measurements_do_not_change_what_a_model_learns_that_draws_at_random(tmp_path: Path) -> None:
    (tmp_path / "dropping.py").write_text(DROPPING)
    run = replace(RUN, model=f"{tmp_path / 'dropping.py'}:model")
    measured = learnt(replace(run, exact_every=1))
    assert [one.moments for one in measured] == [one.moments for one in learnt(run)]


def each_gradient(model: nn.Module, data: Data) -> tuple[Tensor, Tensor]:
    """The loss and the gradient of each example: a row for each, in double precision."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
        output = torch.func.functional_call(model, parameters, (example[None],))
        return cross_entropy(output, target[None])

    both = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0, 0))
    gradients, losses = both(parameters, *data.train.tensors)
    return losses.double(), torch.cat([part.flatten(1) for part in gradients.values()], 1).double()


def test_the_full_gradient_and_the_loss_are_exact(digits: Data) -> None:
    """In mini-batches of two, which leave no example out of 1438; after a few steps, not only at first."""
    run = replace(RUN, batch=2, exact_every=4)
    plain, found = Plain(run, digits), learnt(run, WHO[:5])
    for version, (workers, one) in enumerate(zip(WHO, found, strict=False)):
        if version in (0, 4):
            losses, gradients = each_gradient(plain.model, digits)
            assert one.exact is not None
            assert one.exact.loss == pytest.approx(losses.mean().item(), rel=1e-5)
            assert one.exact.squared_norm == pytest.approx((gradients.mean(0) ** 2).sum().item(), rel=1e-4)
        plain.step(workers)


@pytest.mark.parametrize("batch", [2, 32])
def test_the_variance_is_that_of_random_mini_batches(digits: Data, batch: int) -> None:
    """A mini-batch of m out of N examples, without repetition, has the variance (1 − m/N)·S²/m.

    S² is that of single examples. What is computed is a mean over N/m mini-batches; its standard error is taken from
    how the squared distances of mini-batches to their mean vary.
    """
    run = replace(RUN, batch=batch, exact_every=1)
    exact = learnt(run, [(0,)])[0].exact
    _, gradients = each_gradient(Plain(run, digits).model, digits)
    centred = gradients - gradients.mean(0)
    examples = len(centred)
    expected = (1 - batch / examples) / batch * (centred**2).sum().item() / (examples - 1)
    choice = Choice(examples, batch, seed=1)
    squares = [(centred[choice.indices(0, i)].mean(0) ** 2).sum().item() for i in range(200)]
    deviation = float(np.std(squares, ddof=1))
    assert np.mean(squares) == pytest.approx(expected, abs=STANDARD_ERRORS * deviation / math.sqrt(len(squares)))
    assert exact is not None
    error = deviation / math.sqrt(examples // batch - 1)
    assert exact.variance == pytest.approx(expected, abs=STANDARD_ERRORS * error)
    assert STANDARD_ERRORS * error < 0.35 * expected  # the bound is worth something


def test_the_variance_takes_account_of_examples_that_are_not_drawn_twice(digits: Data) -> None:
    """Mini-batches of a third of all examples vary by a third less than if each of them was drawn from all.

    With a rate of 0 parameters stay as they are, so that a mean over many estimates tells.
    """
    run = replace(RUN, batch=479, rate=0.0, exact_every=1)
    found = [one.exact.variance for one in learnt(run, [(0,)] * 60) if one.exact is not None]
    _, gradients = each_gradient(Plain(run, digits).model, digits)
    examples = len(gradients)
    spread = ((gradients - gradients.mean(0)) ** 2).sum().item() / (examples - 1) / run.batch
    error = STANDARD_ERRORS * float(np.std(found, ddof=1)) / math.sqrt(60)
    assert np.mean(found) == pytest.approx((1 - run.batch / examples) * spread, abs=error)
    assert error < 0.3 * spread


def test_a_replay_gives_what_a_fresh_learner_gives() -> None:
    fresh = learnt(RUN)
    replay = Replay(Learner(RUN, CPU))
    for length in (3, 2, len(WHO), 4):  # it goes on where it has not been before
        replay.rewind()
        assert [replay.step(workers) for workers in WHO[:length]] == fresh[:length]


def test_a_replay_does_not_compute_again() -> None:
    replay = Replay(Learner(RUN, CPU))
    first = [replay.step(workers) for workers in WHO]
    replay.rewind()
    assert all(one is other for one, other in zip(first, map(replay.step, WHO), strict=True))


def test_a_replay_refuses_other_workers() -> None:
    replay = Replay(Learner(RUN, CPU))
    replay.step((0, 1))
    replay.rewind()
    with pytest.raises(AssertionError, match="does not depend on delays"):
        replay.step((0, 2))


def test_a_learner_begins_the_same_whatever_was_drawn_before() -> None:
    first = learnt(RUN)
    torch.rand(3)
    np.random.rand(3)
    assert learnt(RUN) == first
    assert learnt(replace(RUN, seed=8))[0] != first[0]


def test_a_run_that_cannot_be_computed_is_refused_before_it_is(tmp_path: Path) -> None:
    try_out(RUN, CPU)
    narrow = tmp_path / "narrow.py"
    narrow.write_text("from torch import nn\ndef build():\n    return nn.Linear(64, 2)\n")  # classes, of ten
    for run, complaint in (
        (replace(RUN, model="mlpp"), r"model is 'mlpp'; it must be one of mlp"),
        (replace(RUN, model="mnist-cnn"), "mnist-cnn cannot be trained on digits"),
        (replace(RUN, model=f"{narrow}:build"), "cannot be trained on digits .*out of bounds"),
        (replace(RUN, optimizer="muon"), "optimizer is 'muon:lr=0.1'; it must be .*2D"),
        (replace(RUN, batch=500, split=True), "a mini-batch of 500 examples cannot be had from a share of 1/4"),
        (replace(RUN, dataset="digit"), r"dataset is 'digit'; it must be .* or one of digits, mnist"),
    ):
        with pytest.raises(UsageError, match=complaint):
            try_out(run, CPU)


def test_a_data_set_of_ones_own_is_learnt_from(digits: Data, tmp_path: Path) -> None:
    """The first hundred of our own, so that it is known what comes out."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch.utils.data import Subset\n"
        "from dbw_worker.datasets import default_folder, load\n"
        "def build():\n    return Subset(load('digits', default_folder()).train, range(100))\n"
    )
    run = replace(RUN, dataset=f"{file}:build")
    part = Data(TensorDataset(*(tensor[:100] for tensor in digits.train.tensors)), digits.held_out)
    plain = Plain(run, part)
    for workers, found in zip(WHO, learnt(run), strict=True):
        assert_the_same(found, plain.step(workers))
    with pytest.raises(UsageError, match="accuracy_every needs held-out examples"):
        try_out(replace(run, accuracy_every=5), CPU)


def test_labels_that_are_no_classes_are_neither_replaced_nor_sorted(tmp_path: Path) -> None:
    """Nothing is wrong with them otherwise."""
    file = tmp_path / "soft.py"
    file.write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "def build():\n    return TensorDataset(torch.ones(100, 64), torch.full((100, 10), 0.1))\n"
    )
    run = replace(RUN, dataset=f"{file}:build")
    try_out(run, CPU)
    for wrong in (replace(run, label_noise=0.1), replace(run, split="by-label")):
        with pytest.raises(UsageError, match="need data with one class for each example"):
            try_out(wrong, CPU)
