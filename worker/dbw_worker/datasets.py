"""Data sets by name, from a folder that has one file for each.

The file holds the bytes as they were published, so that eight workers that begin at once share it in the page cache
and spend their time on nothing but normalising. It is not compressed for the same reason; numpy checks the sums that
the archive has. Neither scikit-learn nor torchvision is imported to read it.
"""

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from dbw_runtime.configuration import WrongValueError
from dbw_runtime.durable import atomic_write
from dbw_runtime.plugins import Plugin

log = logging.getLogger(__name__)


class DataError(Exception):
    """A data set cannot be used; the text says why and what to do."""


class MissingDataError(DataError, FileNotFoundError):
    """A data set is not in the folder."""


class WrongDataError(DataError):
    """Something is not the data set that it should be."""


class Data(NamedTuple):
    """Examples to train with, and others to measure what was learnt: normalised float32 inputs, int64 targets."""

    train: TensorDataset
    held_out: TensorDataset


class Arrays(NamedTuple):
    """A data set as it is kept: inputs as uint8, targets as int64."""

    train_inputs: NDArray[Any]
    train_targets: NDArray[Any]
    held_out_inputs: NDArray[Any]
    held_out_targets: NDArray[Any]


@dataclass(frozen=True)
class Spec:
    """What a data set is when nothing is wrong with it, and how its inputs are normalised."""

    shape: tuple[int, ...]  # of one input
    train: int  # how many examples there are
    held_out: int
    peak: int  # the largest value of an input
    mean: tuple[float, ...]  # of each channel over the training examples, after dividing by the peak
    deviation: tuple[float, ...]
    sha256: str  # of all inputs and targets, see `_digest`


SPECS = {
    "digits": Spec(
        shape=(64,),
        train=1_438,
        held_out=359,
        peak=16,
        mean=(0.3058,),
        deviation=(0.3764,),
        sha256="c919f97cc7cf8133853f56193dc9589ed8f33e5f10ffbf06498a10cd52b2179b",
    ),
    "mnist": Spec(
        shape=(1, 28, 28),
        train=60_000,
        held_out=10_000,
        peak=255,
        mean=(0.1307,),
        deviation=(0.3081,),
        sha256="1e35582d42a90940c55b956deb61875c020b567ed20e3c5b174f52bf7809ed9b",
    ),
    "fashion-mnist": Spec(
        shape=(1, 28, 28),
        train=60_000,
        held_out=10_000,
        peak=255,
        mean=(0.2860,),
        deviation=(0.3530,),
        sha256="ece172613115fb18b120bec8f6c02271af90b8b8f0a5af5c51cbd5ceed68e619",
    ),
    "cifar10": Spec(
        shape=(3, 32, 32),
        train=50_000,
        held_out=10_000,
        peak=255,
        mean=(0.4914, 0.4822, 0.4465),
        deviation=(0.2470, 0.2435, 0.2616),
        sha256="9048fcbac9c08a64d57a7c5a5a66750a974ad4eab380914df129f7e223d823df",
    ),
}
NAMES = tuple(SPECS)


def default_folder() -> Path:
    """Where data sets are kept: $DBW_DATA_DIR, else $XDG_CACHE_HOME/dbw, else ~/.cache/dbw."""
    if chosen := os.environ.get("DBW_DATA_DIR"):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "dbw"  # as the XDG standard has it


def load(name: str, folder: Path) -> Data:
    """Read a data set. Only `digits` is made if it is not there, or damaged: it needs nothing from the network."""
    spec, arrays = _spec(name), _read_or_make(name, folder)
    return Data(
        TensorDataset(_normalised(spec, arrays.train_inputs), torch.from_numpy(arrays.train_targets)),
        TensorDataset(_normalised(spec, arrays.held_out_inputs), torch.from_numpy(arrays.held_out_targets)),
    )


def load_examples(place: str, folder: Path) -> "Dataset[Any]":
    """The examples to train on: one of our data sets by its name, or a user's."""
    if place in NAMES:
        return load(place, folder).train
    what = f"a function without arguments that returns a Dataset of PyTorch; or one of {', '.join(NAMES)}"
    dataset = Plugin("dataset", place, what).build(Dataset)
    if not hasattr(dataset, "__len__"):
        raise WrongValueError("dataset", place, f"{what}; this one has no length, and mini-batches are chosen from all")
    return dataset


def file_of(name: str, folder: Path) -> Path:
    """Where a data set is kept."""
    return folder / f"{name}.npz"


def read(name: str, folder: Path) -> Arrays:
    """Read a data set that is there. What a disk has damaged is noticed, what somebody has forged only by `check`."""
    flag = "" if folder == default_folder() else f" --dir {folder}"
    path, again = file_of(name, folder), f"`dbw data get {name}{flag}`"
    try:
        with path.open("rb") as file:
            return _unpacked(name, file)
    except FileNotFoundError:
        raise MissingDataError(f"the data set {name} is not in {folder}: get it with {again}") from None
    except WrongDataError as error:
        raise WrongDataError(f"{path} is damaged: {error}; get it again with {again}") from error


def write(name: str, folder: Path, arrays: Arrays) -> Path:
    """Keep a data set. Others may read and write it at the same time: each sees a complete file or none."""
    check(name, arrays)
    folder.mkdir(parents=True, exist_ok=True)
    path = file_of(name, folder)
    with atomic_write(path, shared=True) as file:
        np.savez(file, **arrays._asdict())
    return path


def check(name: str, arrays: Arrays) -> None:
    """Refuse what is not the data set of this name, to the last byte."""
    spec = _spec(name)
    _check_form(spec, arrays)
    if _digest(arrays) != spec.sha256:
        raise WrongDataError(f"the SHA-256 of its content is {_digest(arrays)} instead of {spec.sha256}")


def make_digits() -> Arrays:
    """scikit-learn's digits, which it has on board. Every fifth one is held out, beginning with the fifth.

    Neighbours are often of the same hand, so that this tells how well digits of known writers are read.
    """
    from sklearn.datasets import load_digits  # takes longer to import than all else here

    digits = load_digits()
    inputs, targets = digits.data.astype(np.uint8), digits.target.astype(np.int64)
    held_out = np.arange(len(targets)) % 5 == 4
    return Arrays(inputs[~held_out], targets[~held_out], inputs[held_out], targets[held_out])


def _read_or_make(name: str, folder: Path) -> Arrays:
    try:
        return read(name, folder)
    except (DataError, OSError) as error:
        if name != "digits":
            raise
        if not isinstance(error, MissingDataError):
            log.warning("the data set %s is made again: %s", name, error)
    arrays = make_digits()
    try:
        write(name, folder, arrays)
    except OSError as error:  # a folder that is read-only costs the next one a second, no more
        log.warning("the data set %s cannot be kept in %s: %s", name, folder, error)
    return arrays


def _unpacked(name: str, file: Any) -> Arrays:  # noqa: ANN401 (numpy's own type for files is private)
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = Arrays(*(archive[field] for field in Arrays._fields))
    except MemoryError:
        raise
    except Exception as error:  # numpy and zipfile have a dozen kinds for bytes that are wrong
        raise WrongDataError(f"{type(error).__name__}: {error}") from error
    _check_form(_spec(name), arrays)
    return arrays


def _check_form(spec: Spec, arrays: Arrays) -> None:
    shapes = ((spec.train, *spec.shape), (spec.train,), (spec.held_out, *spec.shape), (spec.held_out,))
    kinds = (np.uint8, np.int64) * 2
    for field, array, shape, kind in zip(Arrays._fields, arrays, shapes, kinds, strict=True):
        if array.shape != shape or array.dtype != kind:
            expected = f"{np.dtype(kind)} {shape}"
            raise WrongDataError(f"{field} is of the type and shape {array.dtype} {array.shape} instead of {expected}")


def _digest(arrays: Arrays) -> str:
    """The SHA-256 of the four arrays one after the other, little-endian whatever machine this is."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def _normalised(spec: Spec, inputs: NDArray[Any]) -> Tensor:
    """Inputs with mean 0 and deviation 1 in each channel, in the one copy that this needs."""
    along_channels = (-1, *[1] * (inputs.ndim - 2))
    mean, deviation = (torch.tensor(values).view(along_channels) for values in (spec.mean, spec.deviation))
    return torch.from_numpy(inputs).float().div_(spec.peak).sub_(mean).div_(deviation)


def _spec(name: str) -> Spec:
    if name not in SPECS:
        raise ValueError(f"there is no data set {name!r}; there are {', '.join(NAMES)}")
    return SPECS[name]
