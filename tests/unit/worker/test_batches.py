import random
import threading

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from dbw_worker.batches import Batches, Choice
from dbw_worker.datasets import DataError
from dbw_worker.randomness import seed_all

CPU = torch.device("cpu")


def test_examples_follow_from_seed_worker_and_version_and_from_nothing_else() -> None:
    chosen = {
        (seed, worker, version): Choice(1000, 20, seed).indices(worker, version).tolist()
        for seed in (0, 1)
        for worker in range(3)
        for version in range(3)
    }
    assert len({tuple(indices) for indices in chosen.values()}) == len(chosen), "all are different"
    choice = Choice(1000, 20, 1)
    choice.indices(0, 77)
    assert choice.indices(2, 2).tolist() == chosen[1, 2, 2], "whatever was asked before"


def test_a_mini_batch_has_no_example_twice_and_all_are_as_likely() -> None:
    choice = Choice(50, 10, 3)
    counts = np.zeros(50)
    for version in range(5000):
        indices = choice.indices(0, version)
        assert len(set(indices.tolist())) == 10
        counts[indices] += 1
    # Each is chosen 1000 times on average, with a standard deviation of √(5000·0.2·0.8) ≈ 28.
    assert np.abs(counts - 1000).max() < 5 * 28.3


def test_shards_are_disjoint_cover_all_and_are_shared_by_workers_beyond_their_number() -> None:
    choice = Choice(101, 25, 0, shards=4)
    seen = [set[int]() for _ in range(8)]
    for version in range(200):
        for worker in range(8):
            seen[worker].update(choice.indices(worker, version).tolist())
    assert sorted(len(some) for some in seen[:4]) == [25, 25, 25, 26]
    assert set.union(*seen[:4]) == set(range(101))
    assert seen[4:] == seen[:4]


def test_shards_are_dealt_at_random() -> None:
    shares = [sorted(set(Choice(100, 25, seed, shards=4).indices(0, 0).tolist())) for seed in (0, 1)]
    assert shares[0] != shares[1]
    assert shares[0] != list(range(0, 100, 4))


def test_shards_by_label_are_pieces_of_the_examples_in_the_order_of_their_labels() -> None:
    labels = np.arange(101) % 10
    choices = [Choice(101, 25, seed, shards=4, labels=labels) for seed in (0, 1)]
    shares = [sorted(choices[0].indices(worker, 0).tolist()) for worker in range(1, 4)]  # all 25 that there are
    seen = set[int]().union(*(choices[0].indices(0, version).tolist() for version in range(200)))
    assert [len(set(labels[share].tolist())) for share in [list(seen), *shares]] == [3, 3, 3, 3]
    assert seen.union(*shares) == set(range(101))
    assert labels[list(seen)].max() <= labels[shares[0]].min()
    assert labels[shares[0]].max() <= labels[shares[1]].min() <= labels[shares[1]].max() <= labels[shares[2]].min()
    assert sorted(choices[1].indices(2, 0).tolist()) != shares[1]  # examples of the same label are dealt at random


@pytest.mark.parametrize(("examples", "size", "shards"), [(10, 11, 1), (100, 26, 4), (101, 26, 4)])
def test_a_mini_batch_that_cannot_be_had_is_refused(examples: int, size: int, shards: int) -> None:
    with pytest.raises(ValueError, match=f"a mini-batch of {size} examples cannot be had"):
        Choice(examples, size, 0, shards)


class Squares(Dataset[tuple[Tensor, int]]):
    """A data set as users have it: one example at a time."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([float(index)]), index**2


@pytest.fixture(params=["examples one by one", "tensors"])
def squares(request: pytest.FixtureRequest) -> "Dataset[tuple[Tensor, int]]":
    numbers = torch.arange(100)
    return Squares() if request.param != "tensors" else TensorDataset(numbers.float()[:, None], numbers**2)  # type: ignore[return-value]


def test_batches_are_the_chosen_examples_in_any_order_of_versions(squares: "Dataset[tuple[Tensor, int]]") -> None:
    choice = Choice(100, 8, 0)
    batches = Batches(squares, choice, CPU)
    for worker, version in [(0, 0), (0, 1), (0, 2), (0, 9), (0, 9), (0, 3), (1, 4), (1, 5)]:
        inputs, targets = batches.batch(worker, version)
        expected = choice.indices(worker, version)
        assert inputs.flatten().tolist() == expected.tolist()
        assert targets.tolist() == (expected**2).tolist()
        assert inputs.dtype == torch.float32


class Failing(Squares):
    """A data set with a hole."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raise OSError("the disk is gone")


def test_what_a_data_set_raises_is_raised_where_the_batch_is_asked_for() -> None:
    batches = Batches(Failing(), Choice(100, 8, 0), CPU)
    for version in (0, 1):
        with pytest.raises(DataError, match=r"example \d+ of the data set cannot be had: OSError.*the disk is gone"):
            batches.batch(0, version)


class Augmented(Squares):
    """A data set that draws at random, and must not be entered twice at once."""

    def __init__(self) -> None:
        self.threads = set[int]()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.threads.add(threading.get_ident())
        drawn = [torch.rand(()).item(), random.random(), float(np.random.rand())]
        return torch.tensor([index, *drawn]), index


def test_a_users_data_set_is_called_by_the_thread_that_asks_and_draws_as_seeded() -> None:
    dataset = Augmented()
    seen = []
    for version in (3, 4, 3):
        batches = Batches(dataset, Choice(100, 8, 0), CPU)
        seed_all(version, CPU)
        seen.append(batches.batch(0, version)[0])
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[1])
    assert dataset.threads == {threading.get_ident()}


class Scaled(TensorDataset):
    """A user's data set of tensors, with examples of its own."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        assert isinstance(index, int)
        return tuple(2 * tensor[index] for tensor in self.tensors)


def test_a_users_kind_of_tensor_data_set_is_asked_for_examples() -> None:
    numbers = torch.arange(10.0)
    inputs, targets = Batches(Scaled(numbers, numbers), Choice(10, 10, 0), CPU).batch(0, 0)
    assert sorted(inputs.tolist()) == sorted(targets.tolist()) == (2 * numbers).tolist()
