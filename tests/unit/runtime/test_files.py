import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from dbw_runtime.files import ReloadedFiles


def read(paths: Sequence[Path]) -> list[int]:
    return [int(path.read_text()) for path in paths]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one", tmp_path / "two"]
    for number, path in enumerate(paths):
        path.write_text(str(number))
    return paths


def change(path: Path, text: str) -> None:
    """Change a file so that its status differs, whatever the clock of the file system is."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before + 1, before + 1))


def test_files_are_read_again_when_any_of_them_has_changed(paths: list[Path]) -> None:
    files = ReloadedFiles(paths, read)
    assert [files.current(), files.current()] == [([0, 1], False)] * 2
    change(paths[1], "7")
    assert [files.current(), files.current()] == [([0, 7], True), ([0, 7], False)]


def test_what_cannot_be_read_leaves_the_value_before_in_use_and_is_logged_once_for_each_change(
    paths: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    files = ReloadedFiles(paths, read)
    change(paths[0], "half-writ")
    assert [files.current(), files.current()] == [([0, 1], False)] * 2
    paths[0].unlink()
    assert [files.current(), files.current()] == [([0, 1], False)] * 2
    assert [level for _, level, _ in caplog.record_tuples] == [logging.ERROR] * 2
    change(paths[0], "5")
    assert files.current() == ([5, 1], True)


def test_files_that_cannot_be_read_at_first_are_an_error(paths: list[Path]) -> None:
    paths[0].unlink()
    with pytest.raises(FileNotFoundError):
        ReloadedFiles(paths, read)
