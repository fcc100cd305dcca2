"""Whatever fails and whenever a process is killed, a file has its old content or its new one."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dbw_runtime import durable
from dbw_runtime.durable import FolderError, atomic_write, lock_folder, set_aside

OLD, NEW = b"old\n" * 5000, b"new\n" * 7000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.txt"
    path.write_bytes(OLD)
    return path


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def write(path: Path, error: BaseException | None = None) -> None:
    with atomic_write(path) as file:
        file.write(NEW)
        if error is not None:
            raise error


def test_a_file_is_replaced_at_the_end_of_the_block_and_not_before(path: Path) -> None:
    with atomic_write(path) as file:
        file.write(NEW)
        file.flush()
        assert path.read_bytes() == OLD
        file.seek(0)
        assert file.read() == NEW
    assert path.read_bytes() == NEW
    assert names(path.parent) == ["file.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_file_alone(path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        write(path, error())
    assert path.read_bytes() == OLD
    assert names(path.parent) == ["file.txt"]


@pytest.mark.parametrize(("module", "function"), [(os, "fsync"), (Path, "replace")])
def test_a_disk_that_fails_leaves_the_old_file_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, module: object, function: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, function, fail)
    with pytest.raises(OSError, match="No space left"):
        write(path)
    assert path.read_bytes() == OLD
    assert names(path.parent) == ["file.txt"]


def test_the_error_that_is_raised_is_the_first_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(ValueError, match="the first"):
        write(path, ValueError("the first"))


def killed_at_line(path: Path, line: int) -> bool:
    """Write in a process that is killed at this line of the module; returns whether it came to its end before."""
    script = """
import os, signal, sys
from pathlib import Path
from dbw_runtime import durable
left = int(sys.argv[2])
def trace(frame, event, _):
    global left
    if frame.f_code.co_filename != durable.__file__:
        return None
    left -= event == "line"
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return trace
sys.settrace(trace)
with durable.atomic_write(Path(sys.argv[1])) as file:
    file.write(b"new\\n" * 7000)
"""
    done = subprocess.run([sys.executable, "-c", script, path, str(line)], check=False)
    assert done.returncode in (0, -9)
    return done.returncode == 0


def test_a_process_that_is_killed_at_any_line_leaves_the_old_file_or_the_new_one(path: Path) -> None:
    found: list[bytes] = []
    for line in range(1, 100):
        path.write_bytes(OLD)
        complete = killed_at_line(path, line)
        found.append(path.read_bytes())
        assert set(names(path.parent)) <= {"file.txt", "file.txt.tmp"}
        if complete:
            break
    assert complete
    assert found == sorted(found, key=[OLD, NEW].index)
    assert {found[0], found[-1]} == {OLD, NEW}


def test_what_a_killed_process_left_is_overwritten_by_the_next_write(path: Path) -> None:
    path.with_name("file.txt.tmp").write_bytes(OLD * 100)
    write(path)
    assert path.read_bytes() == NEW
    assert names(path.parent) == ["file.txt"]


def test_processes_that_share_a_path_write_to_files_of_their_own(path: Path) -> None:
    with atomic_write(path, shared=True) as one, atomic_write(path, shared=True) as other:
        one.write(b"one")
        other.write(b"other")
        assert len(names(path.parent)) == 3
    assert path.read_bytes() == b"one"  # which was finished last
    assert names(path.parent) == ["file.txt"]


def test_a_file_and_then_its_folder_are_flushed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noted(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            done.append(name)
            return function(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", noted("fsync", os.fsync))
    monkeypatch.setattr(Path, "replace", noted("replace", Path.replace))
    monkeypatch.setattr(durable, "flush_folder", noted("folder", durable.flush_folder))
    write(path)
    assert done == ["fsync", "replace", "folder", "fsync"]


def test_files_that_are_set_aside_get_names_that_are_free(path: Path) -> None:
    for number in (1, 2):
        path.write_text(str(number))
        assert set_aside(path, "damaged") == path.with_name(f"file.txt.damaged-{number}")
    assert {file.name: file.read_text() for file in path.parent.iterdir()} == {
        "file.txt.damaged-1": "1",
        "file.txt.damaged-2": "2",
    }


def test_a_folder_that_another_process_uses_is_refused_until_that_has_ended(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from dbw_runtime.durable import lock_folder
lock = lock_folder(Path(sys.argv[1]), "kettle")
print("locked", flush=True)
sys.stdin.read()
"""
    folder = tmp_path / "new" / "folder"
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(FolderError, match=f"^another kettle uses {folder}; give each one a folder of its own$"):
            lock_folder(folder, "kettle")
        other.kill()
        other.wait()
    lock_folder(folder, "kettle").close()
    assert names(folder) == ["lock"]


def test_a_folder_is_free_again_when_its_lock_is_closed(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path, "kettle")
    with pytest.raises(FolderError, match="another kettle"):
        lock_folder(tmp_path, "kettle")
    lock.close()
    lock_folder(tmp_path, "kettle").close()


def test_a_folder_that_cannot_be_made_or_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match=r"file cannot be used: .*File exists.*; give a folder that this program may"):
        lock_folder(tmp_path / "file", "kettle")
    monkeypatch.setattr(Path, "touch", fail)
    with pytest.raises(FolderError, match=r"cannot be used: .*Read-only file system"):
        lock_folder(tmp_path, "kettle")
    monkeypatch.undo()
    lock_folder(tmp_path, "kettle").close()  # a failed attempt leaves no lock
