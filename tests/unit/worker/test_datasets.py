import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dbw_worker import datasets
from dbw_worker.datasets import NAMES, Arrays, MissingDataError, WrongDataError, default_folder, file_of, load
from tests.forks import PROCESSES
from tests.servers import PATIENCE


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the digits. Tests copy it."""
    folder = tmp_path_factory.mktemp("kept")
    load("digits", folder)
    return folder


@pytest.fixture
def folder(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "data"))


def test_digits_are_normalised_and_every_fifth_is_held_out(folder: Path) -> None:
    from sklearn.datasets import load_digits

    data, original = load("digits", folder), load_digits()
    (inputs, targets), (held_out_inputs, held_out_targets) = data.train.tensors, data.held_out.tensors
    assert inputs.shape == (1438, 64)
    assert held_out_inputs.shape == (359, 64)
    assert inputs.dtype == held_out_inputs.dtype == torch.float32
    assert targets.dtype == held_out_targets.dtype == torch.int64
    assert held_out_targets.tolist() == original.target[4::5].tolist()
    assert targets[:8].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert inputs.mean().item() == pytest.approx(0, abs=1e-3)
    assert inputs.std().item() == pytest.approx(1, abs=1e-3)
    restored = (held_out_inputs * 0.3764 + 0.3058) * 16
    np.testing.assert_allclose(restored.numpy(), original.data[4::5], atol=1e-4)


def test_digits_have_the_published_counts_per_class(folder: Path) -> None:
    data = load("digits", folder)
    counts = torch.bincount(torch.cat([data.train.tensors[1], data.held_out.tensors[1]]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_reading_the_file_imports_neither_scikit_learn_nor_torchvision(folder: Path) -> None:
    code = """
import json, sys
from pathlib import Path
from dbw_worker.datasets import load
load("digits", Path(sys.argv[1]))
print(json.dumps(sorted(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], check=True, capture_output=True, text=True)
    assert not {"sklearn", "torchvision"} & set(json.loads(done.stdout))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _fill_with_something_else(path: Path) -> None:
    path.write_text("this is no data set\n" * 1000)


def _change_one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _leave_one_array_out(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, train_inputs=np.zeros((1438, 64), np.uint8))


def _put_an_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


DAMAGES = [_truncate, _empty, _fill_with_something_else, _change_one_bit, _leave_one_array_out, _put_an_array]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_digits_are_made_anew(
    damage: Callable[[Path], None], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = file_of("digits", folder)
    whole = path.read_bytes()
    damage(path)
    with caplog.at_level(logging.WARNING):
        load("digits", folder)
    assert "is damaged" in caplog.text
    assert len(path.read_bytes()) == len(whole)
    datasets.check("digits", datasets.read("digits", folder))
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize("damage", DAMAGES)
def test_other_damaged_data_sets_are_refused_with_what_to_do(damage: Callable[[Path], None], folder: Path) -> None:
    path = file_of("digits", folder).rename(file_of("mnist", folder))
    damage(path)
    with pytest.raises(WrongDataError, match=rf"{path} is damaged: .*`dbw data get mnist --dir {folder}`"):
        load("mnist", folder)


def test_a_file_of_another_data_set_is_refused(folder: Path) -> None:
    file_of("digits", folder).rename(file_of("mnist", folder))
    with pytest.raises(WrongDataError, match=r"shape uint8 \(1438, 64\) instead of uint8 \(60000, 1, 28, 28\)"):
        load("mnist", folder)


@given(data=st.data())
def test_a_changed_bit_anywhere_is_noticed_or_does_no_harm(kept: Path, data: st.DataObject) -> None:
    content = bytearray(file_of("digits", kept).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    changed = kept.with_name("changed")
    changed.mkdir(exist_ok=True)
    file_of("digits", changed).write_bytes(content)
    try:
        arrays = datasets.read("digits", changed)
    except WrongDataError:
        return
    datasets.check("digits", arrays)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_what_is_missing_is_an_error_that_says_how_to_get_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBW_DATA_DIR", str(tmp_path))
    with pytest.raises(MissingDataError) as caught:
        load(name, tmp_path)
    assert str(caught.value) == f"the data set {name} is not in {tmp_path}: get it with `dbw data get {name}`"
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(MissingDataError, match=f"`dbw data get {name} --dir {tmp_path / 'other'}`"):
        load(name, tmp_path / "other")


def test_a_name_that_is_none_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no data set 'imagenet'; there are digits, mnist, fashion-mnist, cifar10"):
        load("imagenet", tmp_path)


def test_digits_need_no_folder_that_can_be_written_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        data = load("digits", tmp_path / "file" / "folder")
    assert len(data.train) == 1438
    assert "cannot be kept" in caplog.text


def _with_a_changed_pixel(digits: Arrays) -> Arrays:
    inputs = digits.train_inputs.copy()
    inputs[700, 20] ^= 1
    return digits._replace(train_inputs=inputs)


def _with_two_labels_exchanged(digits: Arrays) -> Arrays:
    targets = digits.held_out_targets.copy()
    assert targets[0] != targets[1]
    targets[[0, 1]] = targets[[1, 0]]
    return digits._replace(held_out_targets=targets)


def _with_a_label_that_is_none(digits: Arrays) -> Arrays:
    targets = digits.train_targets.copy()
    targets[5] += 256
    return digits._replace(train_targets=targets)


def _with_one_example_less(digits: Arrays) -> Arrays:
    return digits._replace(train_inputs=digits.train_inputs[1:], train_targets=digits.train_targets[1:])


def _of_another_type(digits: Arrays) -> Arrays:
    return digits._replace(train_inputs=digits.train_inputs.astype(np.float32))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_with_a_changed_pixel, "the SHA-256 of its content is"),
        (_with_two_labels_exchanged, "the SHA-256 of its content is"),
        (_with_a_label_that_is_none, "the SHA-256 of its content is"),
        (_with_one_example_less, r"train_inputs is .* \(1437, 64\) instead of uint8 \(1438, 64\)"),
        (_of_another_type, "train_inputs is .* float32"),
    ],
)
def test_what_is_wrong_is_never_kept(
    change: Callable[[Arrays], Arrays], reason: str, kept: Path, tmp_path: Path
) -> None:
    with pytest.raises(WrongDataError, match=reason):
        datasets.write("digits", tmp_path, change(datasets.read("digits", kept)))
    assert not list(tmp_path.iterdir())


def _sum(folder: Path, together: "Barrier", sums: "SimpleQueue[float | None]") -> None:
    """What each of several processes does at the same time."""
    together.wait(PATIENCE)
    total = None
    try:
        total = load("digits", folder).train.tensors[0].sum().item()
    finally:
        sums.put(total)


def test_processes_may_make_the_same_data_set_at_once(tmp_path: Path) -> None:
    together, sums = PROCESSES.Barrier(4), PROCESSES.SimpleQueue()
    processes = [PROCESSES.Process(target=_sum, args=(tmp_path / "new", together, sums)) for _ in range(4)]
    for process in processes:
        process.start()
    assert len({sums.get() for _ in processes}) == 1
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0] * 4
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["digits.npz"]


def test_the_folder_is_that_of_the_variable_then_the_cache_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DBW_DATA_DIR", "/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_folder() == Path("/data")
    monkeypatch.setenv("DBW_DATA_DIR", "")
    assert default_folder() == Path("/cache/dbw")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_folder() == tmp_path / ".cache/dbw"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == tmp_path / ".cache/dbw"
