"""Mini-batches: which examples a worker computes on, and how they get to its device."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

Batch = tuple[Tensor, Tensor]  # inputs, and what they should give


class Choice:
    """Chooses the examples of mini-batches, uniformly at random.

    They follow from the seed, the worker's number and the version of the parameters. So a training can be repeated, and
    neither an interruption nor a restart changes what comes after it. With several shards the examples are dealt into
    these at random, and every worker sees one of them.
    """

    def __init__(self, examples: int, size: int, seed: int, shards: int = 1) -> None:
        if examples // shards < size:
            share = f"a share of 1/{shards} of " if shards > 1 else ""
            raise ValueError(f"a mini-batch of {size} examples cannot be had from {share}{examples} examples")
        self._size, self._seed = size, seed
        dealt = np.random.default_rng(seed).permutation(examples)
        self._shards = [dealt[i::shards] for i in range(shards)]

    def indices(self, worker: int, version: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """The examples of a worker's mini-batch for parameters of a version."""
        shard = self._shards[worker % len(self._shards)]
        random = np.random.default_rng((self._seed, worker, version))
        return shard[random.choice(len(shard), self._size, replace=False, shuffle=False)]


class Batches:
    """The mini-batches of one worker. While it computes, the next is fetched, with pinned memory if it is for a GPU."""

    def __init__(self, dataset: "Dataset[Any]", choice: Choice, device: torch.device) -> None:
        self._dataset, self._choice, self._device = dataset, choice, device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._fetcher = ThreadPoolExecutor(1, "batches")
        self._fetching: Future[Batch] | None = None
        self._fetching_for = (-1, -1)

    def batch(self, worker: int, version: int) -> Batch:
        """The mini-batch of a worker for parameters of a version."""
        fetching = self._fetching if self._fetching_for == (worker, version) else None
        batch = self._fetch(worker, version) if fetching is None else fetching.result()
        self._fetching_for = (worker, version + 1)
        self._fetching = self._fetcher.submit(self._fetch, *self._fetching_for)
        return batch

    def _fetch(self, worker: int, version: int) -> Batch:
        indices = self._choice.indices(worker, version)
        if isinstance(self._dataset, TensorDataset):
            inputs, targets = self._dataset[torch.from_numpy(indices)]
        else:
            inputs, targets = default_collate([self._dataset[i] for i in indices.tolist()])
        if self._stream is None:
            return inputs, targets
        with torch.cuda.stream(self._stream):
            there = [tensor.pin_memory().to(self._device, non_blocking=True) for tensor in (inputs, targets)]
        self._stream.synchronize()
        return there[0], there[1]
