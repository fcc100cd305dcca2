"""A model that learns from real gradients, only those that are used."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from torch.utils.data import TensorDataset, default_collate

from dbw.v1.parameter_server_pb2 import GradientHeader
from dbw_experiments.laboratory.runs import Run
from dbw_ps.aggregate import Aggregate, Moments, WholeGradient
from dbw_ps.model import FlatModel, load_model
from dbw_ps.norms import squared_norm
from dbw_ps.optimiser import Optimiser
from dbw_runtime.configuration import UsageError
from dbw_worker.batches import Batch, Choice
from dbw_worker.datasets import NAMES, Data, DataError, default_folder, load, load_examples
from dbw_worker.evaluation import accuracy
from dbw_worker.gradients import Gradients
from dbw_worker.randomness import draws_of, seed_all

JUDGED_EXAMPLES = 2048  # that tell whether the target is reached, where the run says so


class Exact(NamedTuple):
    """What the estimators estimate, from all examples."""

    loss: float  # F
    squared_norm: float  # ‖∇F‖²
    variance: float  # V(g) of a mini-batch's gradient


class Learnt(NamedTuple):
    """What an iteration gave, and measurements of the parameters that it began with."""

    moments: Moments
    learning_rate: float  # of its step
    effective_learning_rate: float | None  # of the plain SGD that goes as far
    loss: float | None  # on the same examples each time
    accuracy: float | None  # on held-out examples
    exact: Exact | None


Step = Callable[[Sequence[int]], Learnt]  # averages the gradients of these workers, and updates the parameters


class Learner:
    """Trains a model as a parameter server and its workers do, with their own code, in one thread."""

    def __init__(self, run: Run, device: torch.device) -> None:
        seed_all(run.seed, device)
        self._run, self._data = run, mislabelled(_data(run.dataset, device), run.label_noise, run.seed)
        if run.accuracy_every and not len(self._data.held_out):
            raise ValueError("accuracy_every needs held-out examples, which only the data sets with a name have")
        self._server = FlatModel(load_model(run.model))
        self._worker = FlatModel(load_model(run.model), device)
        self._gradients = Gradients(self._worker, torch.nn.functional.cross_entropy)
        self._aggregate = Aggregate(self._server.gradient, self._server.buffers)
        self._optimiser = Optimiser(self._server, _optimizer(run), run.schedule)
        labels = _labels(self._data) if run.split == "by-label" else None
        self._choice = Choice(len(self._data.train), run.batch, run.seed, run.workers if run.split else 1, labels)
        self._judged = np.random.default_rng(run.seed).permutation(len(self._data.train))[:JUDGED_EXAMPLES]
        self._version = 0

    def step(self, workers: Sequence[int]) -> Learnt:
        """Average the gradients of these workers, and update the parameters."""
        loss = self._loss() if _is_due(self._version, self._run.target_every, 1) else None
        accurate = self._accuracy() if _is_due(self._version, self._run.accuracy_every, 1) else None
        exact = self._exact() if _is_due(self._version, self._run.exact_every, 2) else None
        losses = []
        for worker in workers:
            seed_all(draws_of(self._run.seed, worker, self._version)[0], self._worker.vector.device)
            gradient = self._compute(self._batch(self._choice.indices(worker, self._version)))
            self._aggregate.add(gradient)
            losses.append(gradient.header.loss)
        moments = self._aggregate.finish()._replace(loss=sum(losses) / len(losses))
        self._optimiser.rate_factor = (len(workers) / self._run.workers) ** self._run.rate_exponent
        rate = self._optimiser.learning_rate  # both before the step, which changes them
        effective = self._optimiser.effective_learning_rate(moments.mean_squared_norm)
        self._optimiser.step(moments.mean_squared_norm)
        self._version += 1
        return Learnt(moments, rate, effective, loss, accurate, exact)

    def _batch(self, indices: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Batch:
        examples = torch.from_numpy(indices).to(self._worker.vector.device)
        inputs, targets = (tensor[examples] for tensor in self._data.train.tensors)
        return inputs, targets

    def _compute(self, batch: Batch) -> WholeGradient:
        computed = self._gradients.compute(self._server.vector, batch)
        trained = self._server.layout.parameter_elements
        parameters, buffers = computed.gradient[:trained], computed.gradient[trained:]
        header = GradientHeader(loss=computed.loss)
        return WholeGradient(header, [parameters], [buffers], squared_norm(parameters))

    @torch.inference_mode()
    def _loss(self) -> float:
        """The loss that the target is for, without the noise of mini-batches, which would favour some k."""
        self._worker.vector.copy_(self._server.vector)
        inputs, targets = self._batch(self._judged)
        return float(torch.nn.functional.cross_entropy(self._worker.module(inputs), targets))

    def _accuracy(self) -> float:
        self._worker.vector.copy_(self._server.vector)
        share = accuracy(self._worker.module, self._data.held_out)
        self._worker.module.train()
        return share

    def _exact(self) -> Exact:
        """Go through all examples, in mini-batches that a random order makes; what remains for the last is left out.

        The variance is that of these mini-batches, a sample of all that there are, corrected for drawing without
        replacement; it is off by a few percent.
        """
        examples, size = len(self._data.train), self._run.batch
        order = np.random.default_rng((self._run.seed, self._version // self._run.exact_every)).permutation(examples)
        blocks = [order[i : i + size] for i in range(0, examples - size + 1, size)]
        total = torch.zeros(self._server.layout.parameter_elements, dtype=torch.float64)
        losses, squares = [], 0.0
        for block in blocks:
            gradient = self._compute(self._batch(block))
            losses.append(gradient.header.loss)
            squares += gradient.squared_norm
            total += gradient.parameters[0]
        norm = squared_norm(total / len(blocks))
        spread = (squares - len(blocks) * norm) / (len(blocks) - 1) if len(blocks) > 1 else math.nan
        return Exact(sum(losses) / len(losses), norm, spread * (1 - size / examples))


class Replay:
    """Learning that is remembered: the same workers' gradients, asked for again, need not be computed again.

    It serves runs that differ in their delays only, one after the other, if these do not change what is asked for.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._steps: list[tuple[Sequence[int], Learnt]] = []
        self._next = 0

    def rewind(self) -> None:
        """Begin again."""
        self._next = 0

    def step(self, workers: Sequence[int]) -> Learnt:
        """As the learner's."""
        if self._next == len(self._steps):
            self._steps.append((workers, self._learner.step(workers)))
        remembered, learnt = self._steps[self._next]
        assert remembered == workers, "what is learnt does not depend on delays"
        self._next += 1
        return learnt


def try_out(run: Run, device: torch.device) -> None:
    """Refuse a run that cannot be computed, before hours are spent on others."""
    try:
        Learner(run, device)
        Learner(replace(run, accuracy_every=0, exact_every=0), device).step([0])
    except (UsageError, DataError):
        raise
    except Exception as error:  # models and losses say in many ways that data do not fit them
        raise UsageError(
            f"{run.model} cannot be trained on {run.dataset} with mini-batches of {run.batch}: {error}"
        ) from error


def mislabelled(data: Data, share: float, seed: int) -> Data:
    """Replace a share of the training labels by random classes, perhaps the right ones, in a copy."""
    if not share:
        return data
    (inputs, given), labels = data.train.tensors, _labels(data).copy()
    random = np.random.default_rng((seed, *b"label noise"))
    replaced = random.permutation(len(labels))[: round(share * len(labels))]
    labels[replaced] = random.choice(np.unique(labels), len(replaced))
    return Data(TensorDataset(inputs, torch.from_numpy(labels).to(given.device)), data.held_out)


@cache
def _data(place: str, device: torch.device) -> Data:
    train, held_out = load(place, default_folder()) if place in NAMES else _collected(place)
    for dataset in (train, held_out):
        dataset.tensors = tuple(tensor.to(device) for tensor in dataset.tensors)
    return Data(train, held_out)


def _collected(place: str) -> Data:
    """A user's data set, each example as it is at this time; nothing is held out."""
    dataset = load_examples(place, default_folder())
    inputs, targets = default_collate([dataset[index] for index in range(len(dataset))])  # type: ignore[arg-type]
    return Data(TensorDataset(inputs, targets), TensorDataset(inputs[:0], targets[:0]))


def _labels(data: Data) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The classes of the training examples."""
    labels = data.train.tensors[1]
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError("label_noise and a split by label need data with one class for each example")
    return labels.cpu().numpy()


def _optimizer(run: Run) -> str:
    """The optimiser with its learning rate."""
    return f"{run.optimizer}{',' if ':' in run.optimizer else ':'}lr={run.rate}"


def _is_due(version: int, every: int, in_a_row: int) -> bool:
    return every > 0 and version % every < in_a_row
