"""Mini-batches: which examples a worker computes on, and how they get to its device."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from dbw_worker.datasets import DataError

Batch = tuple[Tensor, Tensor]  # inputs, and what they should give


class Choice:
    """Chooses the examples of mini-batches, uniformly at random by seed, worker and version, as in `draws_of`.

    With several shards the examples are dealt into these at random, or in the order of their labels, and every worker
    sees one of them.
    """

    def __init__(
        self, examples: int, size: int, seed: int, shards: int = 1, labels: "np.ndarray[Any, Any] | None" = None
    ) -> None:
        if examples // shards < size:
            share = f"a share of 1/{shards} of " if shards > 1 else ""
            raise ValueError(f"a mini-batch of {size} examples cannot be had from {share}{examples} examples")
        self._size, self._seed = size, seed
        dealt = np.random.default_rng(seed).permutation(examples)
        if labels is None:
            self._shards = [dealt[i::shards] for i in range(shards)]
        else:
            self._shards = np.array_split(dealt[np.argsort(labels[dealt], kind="stable")], shards)

    def indices(self, worker: int, version: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """The examples of a worker's mini-batch for parameters of a version."""
        shard = self._shards[worker % len(self._shards)]
        random = np.random.default_rng((self._seed, worker, version))
        return shard[random.choice(len(shard), self._size, replace=False, shuffle=False)]


class Batches:
    """The mini-batches of one worker.

    Of tensors, the next one is fetched while a worker computes, through pinned memory on a stream of its own if it is
    for a GPU. Users' data sets are called when their batch is needed, by the thread that needs it: they may draw at
    random, and few expect several threads.
    """

    def __init__(self, dataset: "Dataset[Any]", choice: Choice, device: torch.device) -> None:
        self._dataset, self._choice, self._device = dataset, choice, device
        self._tensors = dataset.tensors if type(dataset) is TensorDataset else None
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._fetcher = ThreadPoolExecutor(1, "batches")
        self._fetching: dict[tuple[int, int], Future[Batch]] = {}

    def batch(self, worker: int, version: int) -> Batch:
        """The mini-batch of a worker for parameters of a version."""
        if self._tensors is None:
            return self._on_device(self._collected(self._choice.indices(worker, version).tolist()))
        expected = self._fetching.pop((worker, version), None)
        batch = self._fetch(worker, version) if expected is None else expected.result()
        following = (worker, version + 1)
        self._fetching = {following: self._fetcher.submit(self._fetch, *following)}
        return batch

    def _fetch(self, worker: int, version: int) -> Batch:
        assert self._tensors is not None
        indices = torch.from_numpy(self._choice.indices(worker, version))
        inputs, targets = (tensor[indices] for tensor in self._tensors)
        return self._on_device((inputs, targets))

    def _collected(self, indices: list[int]) -> Batch:
        examples = []
        for index in indices:
            try:
                examples.append(self._dataset[index])
            except Exception as error:
                raise DataError(f"example {index} of the data set cannot be had: {error!r}") from error
        inputs, targets = default_collate(examples)
        return inputs, targets

    def _on_device(self, batch: Batch) -> Batch:
        if self._stream is None:
            return batch
        with torch.cuda.stream(self._stream):
            inputs, targets = (tensor.pin_memory().to(self._device, non_blocking=True) for tensor in batch)
        self._stream.synchronize()
        for tensor in (inputs, targets):  # which another stream reads, perhaps longer than we hold it
            tensor.record_stream(torch.cuda.default_stream(self._device))
        return inputs, targets
