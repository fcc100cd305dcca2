"""A file of JSON lines, one for each iteration, that plots are made from."""

import errno
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from dbw_runtime.configuration import UsageError
from dbw_runtime.durable import TEMPORARY, atomic_write, flush, flush_folder, free_name

log = logging.getLogger(__name__)
MAX_LINE_BYTES = 2**24  # what is longer is not a line of ours, and need not fit into memory
# What is wrong with a disk, and not with the path that somebody gave.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class TrainingLog:
    """The file, open for the iterations from a given one on.

    What it has of these already is moved to a file beside it, because they are done again. A file that is not a
    training log is refused.
    """

    def __init__(self, path: Path, resume_at: int) -> None:
        self._path, self._failing = path.resolve(), False  # a link stays one
        self.failures = 0
        try:
            if path.exists() and not path.is_file():
                raise UsageError(f"the training log {path} is not a regular file; give the path of one")
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _remove_from(self._path, resume_at)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            flush_folder(self._path.parent)
        except OSError as error:
            if error.errno in DISK_ERRORS:
                raise OSError(error.errno, f"the training log {path} cannot be used: {error.strerror}") from error
            advice = "give a path that this program may write to"
            raise UsageError(f"the training log {path} cannot be used: {error}; {advice}") from error

    def write(self, line: bytes) -> bool:
        """Add a line, see `encode`, which outlives this process but perhaps not a power failure.

        Returns whether that worked. If the disk fails, the file stays as it was.
        """
        try:
            size = os.fstat(self._file).st_size
            try:
                while line:
                    line = line[os.write(self._file, line) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._file, size)  # so that the next line begins where this one did
                raise
        except OSError as error:
            self._failed(error)
            return False
        if self._failing:
            log.info("the training log %s is written again", self._path)
        self._failing = False
        return True

    def sync(self) -> bool:
        """Make all lines last over a power failure; returns whether that worked."""
        try:
            os.fsync(self._file)
        except OSError as error:
            self._failed(error)
            return False
        return True

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        if not self._failing:
            log.error("the training log %s cannot be written, lines wait in memory: %s", self._path, error)
        self._failing = True


def encode(entry: Mapping[str, Any]) -> bytes:
    """The line of an entry, which has an integer `iteration`. NaN and infinity become null."""
    return msgspec.json.encode(entry, enc_hook=_plain) + b"\n"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a training log, which may still be written to."""
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _entry(line)
            except (ValueError, RecursionError) as error:
                problem = f"is not a JSON object with an integer `iteration`: {error}"
                advice = "give the path of a training log, or remove the line"
                raise UsageError(f"line {number} of {path} {problem}; {advice}") from error


def has_entries(path: Path) -> bool:
    """Whether there is a training log with at least one whole line."""
    return path.is_file() and next(read(path), None) is not None


class _Entry(msgspec.Struct):
    iteration: int


def _entry(line: bytes) -> dict[str, Any]:
    msgspec.json.decode(line, type=_Entry)  # which looks at the iteration only
    entry: dict[str, Any] = msgspec.json.decode(line)
    return entry


def _iteration(line: bytes) -> int | None:
    """The iteration of a line; None if it is half-written, cannot be read, or is not a line of ours."""
    with suppress(ValueError, RecursionError):
        return int(_entry(line)["iteration"]) if line.endswith(b"\n") else None
    return None


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.readline(MAX_LINE_BYTES), b"")


def _remove_from(path: Path, iteration: int) -> None:
    """Move the lines of an iteration and of later ones to a file beside this one, and remove half-written ones."""

    def stays(line: bytes) -> bool:
        found = _iteration(line)
        return found is not None and found < iteration

    path.with_name(path.name + TEMPORARY).unlink(missing_ok=True)  # a killed process may have left it
    if not path.exists():
        return
    with path.open("r+b") as file:
        _refuse_others(path, file.readline(MAX_LINE_BYTES))
        file.seek(0)
        end = 0  # where the first line stands that goes
        rest_has_iterations, rest_stays = False, False
        for line in _lines(file):
            if end == file.tell() - len(line) and stays(line):
                end = file.tell()
            else:
                rest_has_iterations |= _iteration(line) is not None
                rest_stays |= stays(line)
        if end == file.tell():
            return
        if end == 0 and rest_has_iterations and not rest_stays:  # all goes, which needs no room on a full disk
            path.rename(aside := free_name(path, "removed"))
            path.touch()
            shutil.copymode(aside, path)
            log.info("the training log %s begins again; what it had is kept as %s", path, aside)
            return
        if rest_has_iterations:
            _keep_aside(path, file, end)
        if rest_stays:  # after a power failure perhaps, which can leave anything between two lines
            file.seek(0)
            with atomic_write(path) as copy:
                copy.writelines(line for line in _lines(file) if stays(line))
                shutil.copymode(path, copy.name)
        else:  # in place, which needs no room on a full disk
            os.ftruncate(file.fileno(), end)
            flush(file)
    log.info("the training log %s goes on with iteration %d; what it had from there on was removed", path, iteration)


def _keep_aside(path: Path, file: IO[bytes], begin: int) -> None:
    """Copy what is about to be removed to a file of its own, if there is room for it."""
    file.seek(begin)
    aside = free_name(path, "removed")
    try:
        with atomic_write(aside) as copy:
            shutil.copyfileobj(file, copy)
    except OSError as error:
        log.warning("what is removed from the training log %s cannot be kept as %s: %s", path, aside, error)
    else:
        log.info("what is removed from the training log %s is kept as %s", path, aside)


def _refuse_others(path: Path, first_line: bytes) -> None:
    """Leave a file alone that somebody gave by mistake. A first line may be half-written, and zeros if power failed."""
    half = not first_line.endswith(b"\n") and first_line.strip(b"\0")[:1] in (b"", b"{")
    if not half and _iteration(first_line) is None:
        problem = "is not a JSON object with an integer `iteration`, so it is not a training log"
        raise UsageError(f"the first line of {path} {problem}; move it away, or give another path")


def _plain(value: Any) -> object:  # noqa: ANN401
    """Numbers of numpy and torch, which have types of their own, as those of Python."""
    if not hasattr(value, "item"):
        raise TypeError(f"{value!r} cannot be written as JSON")
    return value.item()
