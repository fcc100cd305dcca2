"""The log has one line for each iteration, whatever ends the process that writes it."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dbw_ps import training_log
from dbw_ps.training_log import TrainingLog, encode, read
from dbw_runtime.configuration import UsageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "training.jsonl"


def write(path: Path, iterations: range) -> None:
    log = TrainingLog(path, resume_at=iterations.start)
    for iteration in iterations:
        log.write(encode({"iteration": iteration, "loss": iteration / 7}))
    log.close()


def removed(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.removed-{number}")


def fail(*_: object) -> NoReturn:
    raise OSError(28, "No space left on device")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def iterations(path: Path) -> list[int]:
    return [entry["iteration"] for entry in read(path)]


def test_entries_come_back_as_they_were_written(path: Path) -> None:
    entries = [
        {"iteration": 0, "loss": 0.1 + 0.2, "k": 3, "seconds": [1.5, 2.5], "note": "größer\nals", "late": None},
        {"iteration": 1, "workers": {"a": True}},
    ]
    log = TrainingLog(path, resume_at=0)
    for entry in entries:
        log.write(encode(entry))
    assert list(read(path)) == entries  # before it is closed
    log.close()
    assert list(read(path)) == entries


def test_values_that_json_does_not_have_become_null(path: Path) -> None:
    log = TrainingLog(path, resume_at=0)
    log.write(
        encode({"iteration": 0, "loss": math.nan, "norms": [math.inf, -math.inf, 1.0], "mean": np.float64("nan")})
    )
    log.close()
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        "iteration": 0,
        "loss": None,
        "norms": [None, None, 1.0],
        "mean": None,
    }


def test_numbers_of_numpy_and_torch_are_numbers(path: Path) -> None:
    log = TrainingLog(path, resume_at=0)
    log.write(encode({"iteration": np.int64(0), "a": np.float32(0.5), "b": torch.tensor(0.25)}))
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        log.write(encode({"iteration": 1, "a": object()}))
    log.close()
    assert list(read(path)) == [{"iteration": 0, "a": 0.5, "b": 0.25}]


def test_iterations_that_are_done_again_are_removed(path: Path) -> None:
    write(path, range(10))
    before = path.read_bytes().splitlines()
    write(path, range(6, 8))
    assert iterations(path) == list(range(8))
    assert path.read_bytes().splitlines()[:6] == before[:6]
    write(path, range(2))
    assert iterations(path) == [0, 1]


def test_what_is_removed_is_kept_in_a_file_of_its_own(path: Path) -> None:
    write(path, range(10))
    before = path.read_bytes().splitlines(keepends=True)
    write(path, range(6, 8))
    write(path, range(7, 9))
    assert iterations(path) == list(range(9))
    assert removed(path, 1).read_bytes() == b"".join(before[6:])
    assert removed(path, 2).read_bytes() == before[7]
    write(path, range(9, 10))
    assert len(names(path.parent)) == 3


def test_a_full_disk_keeps_a_log_from_being_kept_aside_but_not_from_being_cut(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, range(10))
    monkeypatch.setattr(training_log, "atomic_write", fail)
    TrainingLog(path, resume_at=5).close()
    assert iterations(path) == list(range(5))
    assert "cannot be kept as" in caplog.text


def test_a_log_of_which_everything_is_removed_is_kept_aside_also_on_a_full_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, range(10))
    path.chmod(0o640)
    monkeypatch.setattr(training_log, "atomic_write", fail)
    TrainingLog(path, resume_at=0).close()
    assert iterations(path) == []
    assert iterations(removed(path, 1)) == list(range(10))
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_log_of_which_nothing_is_removed_is_not_rewritten(path: Path) -> None:
    write(path, range(3))
    inode = path.stat().st_ino
    write(path, range(3, 5))
    assert path.stat().st_ino == inode
    assert iterations(path) == list(range(5))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.data())
def test_wherever_the_file_is_cut_exactly_the_lines_before_remain(gaps: list[int], data: st.DataObject) -> None:
    numbers = [sum(gaps[: i + 1]) + i for i in range(len(gaps))]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        log = TrainingLog(path, resume_at=0)
        for number in numbers:
            log.write(encode({"iteration": number, "loss": number / 7}))
        log.close()
        content = path.read_bytes()
        cut = data.draw(st.integers(0, len(content)))
        resume_at = data.draw(st.integers(0, numbers[-1] + 2))
        path.write_bytes(content[:cut])
        complete = numbers[: content[:cut].count(b"\n")]
        assert iterations(path) == complete
        TrainingLog(path, resume_at).close()
        expected = [number for number in complete if number < resume_at]
        assert path.read_bytes() == b"".join(content.splitlines(keepends=True)[: len(expected)])
        kept = [number for number in complete if number >= resume_at]
        assert names(path.parent) == ["log", "log.removed-1"][: 1 + bool(kept)]
        if kept:
            assert [entry["iteration"] for entry in read(removed(path, 1))] == kept


DAMAGES = [b"\0\0\0", b"\0\0\0\n", b"{}\n", b'{"iteration": true}\n', b"[" * 100_000 + b"\n"]


@pytest.mark.parametrize("damage", [*DAMAGES, b'{"iteration": 1, "note": "\xff"}\n'])
def test_what_a_power_failure_leaves_behind_good_lines_is_removed(path: Path, damage: bytes) -> None:
    write(path, range(3))
    with path.open("ab") as file:
        file.write(damage)
    if damage.endswith(b"\n"):
        with pytest.raises(UsageError, match=r"line 4 of .* is not a JSON object with an integer `iteration`"):
            iterations(path)
    write(path, range(3, 5))
    assert iterations(path) == list(range(5))


@pytest.mark.parametrize("content", [b"", b"{", b'{"iteration": 1', b"\0" * 100])
def test_a_file_without_a_whole_line_is_taken(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    write(path, range(2))
    assert iterations(path) == [0, 1]


@pytest.mark.parametrize(
    "content",
    [b"a letter\n", b"a letter", b"\n", b"[1, 2]\n", b'{"loss": 1}\n', b'{"iteration": "1"}\n', b"\x89PNG\r\n\x1a\n"],
)
def test_a_file_that_is_no_training_log_is_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a training log; move it away, or give another path"):
        TrainingLog(path, resume_at=0)
    assert path.read_bytes() == content


def test_a_path_that_cannot_be_used_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a regular file; give the path of one"):
        TrainingLog(tmp_path, resume_at=0)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be used: .*File exists.*; give a path that"):
        TrainingLog(tmp_path / "file" / "log", resume_at=0)


def test_a_line_longer_than_memory_may_be_is_none_of_ours(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_log, "MAX_LINE_BYTES", 100)
    write(path, range(3))
    with path.open("ab") as file:
        file.write(b"x" * 1000 + b"\n")
    write(path, range(3, 4))
    assert iterations(path) == [0, 1, 2, 3]


@pytest.mark.parametrize("call", ["Path.replace", "os.ftruncate", "os.fsync"])
def test_a_process_that_is_killed_while_it_cuts_loses_nothing(path: Path, call: str) -> None:
    write(path, range(10))
    script = f"""
import os, signal
from pathlib import Path
from dbw_ps.training_log import TrainingLog, encode
{call} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
TrainingLog(Path({str(path)!r}), resume_at=5)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert iterations(path) == list(range(10))
    write(path, range(10, 11))
    assert iterations(path) == list(range(11))


def test_a_disk_that_fails_while_a_log_is_opened_is_not_wrong_usage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, range(10))
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"training log .* cannot be used: No space left on device"):
        TrainingLog(path, resume_at=5)
    assert iterations(path) == list(range(5))


def test_a_link_stays_a_link_and_a_mode_stays_as_it_is(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    write(link, range(5))
    target.chmod(0o640)
    write(link, range(2, 3))
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert iterations(target) == [0, 1, 2]


FULL_DISK = """
import logging, resource, sys
from pathlib import Path
from dbw_ps.training_log import TrainingLog, encode
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
path = Path(sys.argv[1])
log = TrainingLog(path, resume_at=0)
log.write(encode({"iteration": 0}))
for rest in (5, 0):  # half a line fits, then nothing
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + rest, resource.RLIM_INFINITY))
    assert not log.write(encode({"iteration": 1, "note": "x" * 100}))
print(log.failures, "failures")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert log.write(encode({"iteration": 2}))
log.close()
"""


def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing_behind(path: Path) -> None:
    program = subprocess.run([sys.executable, "-c", FULL_DISK, path], capture_output=True, text=True, check=True)
    assert program.stdout.splitlines() == [
        f"ERROR the training log {path} cannot be written, lines wait in memory: [Errno 27] File too large",
        "2 failures",
        f"INFO the training log {path} is written again",
    ]
    assert iterations(path) == [0, 2]


def test_a_disk_that_cannot_be_flushed_is_counted_and_not_raised(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = TrainingLog(path, resume_at=0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        assert not log.sync()
    assert log.failures == 1
    assert log.sync()
    log.close()
