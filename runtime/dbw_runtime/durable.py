"""Files and folders that are intact whenever the process is killed or the power fails.

A file is written under another name, flushed to the disk, and gets its name in one step. So there is always the old
content or the new one under that name.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

TEMPORARY = ".tmp"  # how the names of unfinished files end


class FolderError(Exception):
    """A folder cannot be used; the text says why, and what to do."""


@contextmanager
def atomic_write(path: Path, shared: bool = False) -> Iterator[IO[bytes]]:
    """Give a file to write and read. At the end of the block it replaces `path`; if the block fails it is removed.

    A killed process leaves it behind as `path` + TEMPORARY, which the next write overwrites. Where several processes
    may write to the same path, `shared` gives each an unfinished file of its own.
    """
    unique = f".{uuid4().hex}" if shared else ""
    temporary = path.with_name(f"{path.name}{unique}{TEMPORARY}")
    try:
        with temporary.open("w+b") as file:
            yield file
            flush(file)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # the error that matters is the first one
            temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush(file: IO[bytes]) -> None:
    """Make what was written to a file last over a power failure."""
    file.flush()
    os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Make what was renamed, added and removed in a folder last over a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_aside(path: Path, kind: str) -> Path:
    """Rename a file to NAME.KIND-1 or the next free name, so that a person can look at it later."""
    aside = free_name(path, kind)
    path.rename(aside)
    flush_folder(path.parent)
    return aside


def free_name(path: Path, kind: str) -> Path:
    """The first of NAME.KIND-1, NAME.KIND-2, … that no file has."""
    number = 1
    while (free := path.with_name(f"{path.name}.{kind}-{number}")).exists():
        number += 1
    return free


def lock_folder(folder: Path, program: str) -> IO[bytes]:
    """Make a folder if need be, and keep other processes from using it until the result is closed.

    `program` is what such a process is called in the error's text.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as on_failure:
            lock = on_failure.enter_context((folder / "lock").open("ab"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            attempt = folder / f"lock{TEMPORARY}"  # notices now if the folder is read-only, not at the first write
            attempt.touch()
            attempt.unlink()
            on_failure.pop_all()
            return lock
    except BlockingIOError:
        raise FolderError(f"another {program} uses {folder}; give each one a folder of its own") from None
    except OSError as error:
        raise unusable(folder, error) from error


def require_lock(folder: Path, lock: IO[bytes]) -> None:
    """FolderError if the folder is not the one that was locked any more: another process may use what is there now."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if os.path.samestat((folder / "lock").stat(), os.fstat(lock.fileno())):
            return
    raise FolderError(f"{folder} was removed or replaced while it was used, and is not written to; start again")


def unusable(folder: Path, error: OSError) -> FolderError:
    """What to raise where a folder fails."""
    return FolderError(f"{folder} cannot be used: {error}; give a folder that this program may write to")
