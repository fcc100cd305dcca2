"""Checkpoints of a parameter server in a folder. A process may be killed at any line of this.

A file is what `torch.save` writes, so that `torch.load` opens it anywhere, and ends with a digest of the rest as the
comment of the zip archive: torch does not look at the check sums that the archive has, and would load parameters that a
failing disk has changed.
"""

import errno
import hashlib
import logging
import os
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from dbw_ps.retention import Saved, kept, loss_of
from dbw_runtime.durable import (
    TEMPORARY,
    FolderError,
    atomic_write,
    flush,
    lock_folder,
    require_lock,
    set_aside,
    unusable,
)

log = logging.getLogger(__name__)
FORMAT_VERSION = 1  # of checkpoints; all formats up to this one are read
NAME = re.compile(r"checkpoint-(\d{12})\.pt")
DIGEST_BYTES, CHUNK_BYTES = 64, 2**20
RETRY_SECONDS = 10.0  # a disk that fails is given some time
FULL = (errno.ENOSPC, errno.EDQUOT)


class CheckpointFolder:
    """A folder of checkpoints that this process alone uses. It keeps the newest, one of each hour, and the best one."""

    def __init__(self, path: Path, keep: int = 3, keep_hours: int = 24) -> None:
        assert keep >= 1
        self._path, self._lock = path, lock_folder(path, "parameter server")
        self._keep, self._keep_hours = keep, keep_hours
        self._losses: dict[Path, float | None] = {}  # of the checkpoints, as far as they are known
        for leftover in path.glob(f"checkpoint-*{TEMPORARY}"):
            leftover.unlink()

    def write(self, iteration: int, state: dict[str, Any]) -> Path:
        """Add the checkpoint of an iteration. Others stay until it is complete, and then those that are to be kept.

        Checkpoints of later iterations are those of a training that was abandoned for this one, and are set aside.
        On a full disk those of earlier hours are deleted, the oldest first, until there is room.
        """
        assert 0 <= iteration < 10**12
        assert "format_version" not in state
        path = self._path / f"checkpoint-{iteration:012}.pt"
        require_lock(self._path, self._lock)
        while not self._is_written(path, iteration, state):
            log.warning("the disk of %s is full: the oldest checkpoint of an earlier hour was deleted", self._path)
        self._losses[path] = loss_of(state.get("losses", ()))
        self._delete_old(self._keep_hours)
        return path

    def _is_written(self, path: Path, iteration: int, state: dict[str, Any]) -> bool:
        """Write a file, or delete another one if there is no room for it; returns whether it is written."""
        try:
            self._write(path, iteration, state)
        except OSError as error:
            if error.errno not in FULL or not self._delete_old(keep_hours=0, at_most=1):
                raise
            return False
        return True

    def _write(self, path: Path, iteration: int, state: dict[str, Any]) -> None:
        with atomic_write(path) as file:
            _write(file, {"format_version": FORMAT_VERSION, **state})
            flush(file)  # if that fails, others are still there
            for later, other in self._all():
                if later > iteration:  # `newest` would prefer it to those that come now
                    aside = set_aside(other, "abandoned")
                    log.warning("training goes on from before a checkpoint, which was set aside as %s", aside)

    def _delete_old(self, keep_hours: int, at_most: int | None = None) -> int:
        """Delete what is not to be kept, the oldest first; returns how many checkpoints that were."""
        deleted = 0
        try:
            found = {path: Saved(iteration, path.stat().st_mtime, self._loss(path)) for iteration, path in self._all()}
            stay = kept(found.values(), self._keep, keep_hours)
            old = [path for path, saved in found.items() if saved.iteration not in stay]
            for path in old[::-1][:at_most]:
                path.unlink(missing_ok=True)
                self._losses.pop(path, None)
                deleted += 1
        except OSError as error:
            log.warning("old checkpoints cannot be deleted: %s", error)
        return deleted

    def _loss(self, path: Path) -> float | None:
        """The loss of a checkpoint, which may be of an earlier process; None if it cannot be read."""
        if path not in self._losses:
            try:
                content = torch.load(path, mmap=True, map_location="cpu", weights_only=True)  # which reads no tensors
                self._losses[path] = loss_of(content.get("losses", ()))
            except Exception as error:  # `newest` is who looks into that
                log.warning("the loss of %s cannot be read: %s", path, error)
                self._losses[path] = None
        return self._losses[path]

    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """The iteration and the state of the newest checkpoint that can be used; later ones are set aside.

        Refuses to go on if one is undamaged and still cannot be loaded, for want of memory say: an older one would do
        no better, and much would be lost.
        """
        try:
            for iteration, path in self._all():
                try:
                    return iteration, _read(path)
                except _UnusableError as error:
                    aside = set_aside(path, error.kind)
                    log.warning("a checkpoint cannot be used and was set aside as %s: %s", aside, error)
        except OSError as error:
            raise unusable(self._path, error) from error
        return None

    def close(self) -> None:
        """Let another process use the folder."""
        self._lock.close()

    def _all(self) -> list[tuple[int, Path]]:
        """Iterations and their files, the newest first."""
        found = [(match, path) for path in self._path.iterdir() if (match := NAME.fullmatch(path.name))]
        return sorted(((int(match[1]), path) for match, path in found), reverse=True)


class CheckpointWriter:
    """Writes checkpoints, and knows when the next one is due: after a number of iterations or seconds, 0 means never.

    What goes wrong is logged and counted, and training goes on.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        every_iterations: int,
        every_seconds: float,
        iteration: int = 0,  # that training begins with, or goes on with
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._clock = folder, clock
        self._every_iterations, self._every_seconds = every_iterations, every_seconds
        self._safe_iteration, self._safe_time = iteration, clock()  # what a crash would take training back to
        self._retry_time: float | None = None
        self.last_iteration: int | None = None
        self.last_time: float | None = None  # when it was complete
        self.last_seconds: float | None = None  # that it took to write
        self.failures = 0

    def due(self, iteration: int, now: float) -> bool:
        """Whether to save the state that training has at the beginning of an iteration."""
        if self._retry_time is not None:
            return now >= self._retry_time
        iterations, seconds = iteration - self._safe_iteration, now - self._safe_time
        return iterations > 0 and (
            0 < self._every_iterations <= iterations or (self._every_seconds > 0 and seconds >= self._every_seconds)
        )

    def write(self, iteration: int, state: dict[str, Any]) -> bool:
        """Write the state at the beginning of an iteration; returns whether that worked."""
        begin = self._clock()
        try:
            self._folder.write(iteration, state)
        except Exception as error:  # training goes on whatever is wrong with the disk, or with us
            self.failures += 1
            self._retry_time = self._clock() + RETRY_SECONDS
            reason = None if isinstance(error, OSError | FolderError) else error
            log.error("the checkpoint of iteration %d cannot be written: %s", iteration, error, exc_info=reason)
            return False
        self._safe_iteration, self._safe_time, self._retry_time = iteration, begin, None
        self.last_iteration, self.last_time = iteration, self._clock()
        self.last_seconds = self.last_time - begin
        return True


class _UnusableError(Exception):
    """A checkpoint is to be set aside, as one of this kind."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


def _write(file: IO[bytes], content: dict[str, Any]) -> None:
    try:
        torch.save(content, file)
        if strangers := torch.serialization.get_unsafe_globals_in_checkpoint(_at(file, 0)):
            raise TypeError(f"a state with {', '.join(strangers)} could not be loaded; use plain types and tensors")
        file.seek(-2, os.SEEK_END)  # a zip archive ends with the length of its comment, and torch writes none
        file.write(struct.pack("<H", DIGEST_BYTES))
        file.write(_digest(file, file.tell()))
    except RuntimeError as error:  # which torch makes of a write that fails
        reason = error.__context__
        raise reason if isinstance(reason, OSError) else OSError(errno.EIO, str(error)) from error


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END) - DIGEST_BYTES
        if size < 0 or _digest(file, size) != _at(file, size).read():
            raise _UnusableError("damaged", f"its digest does not match its {size + DIGEST_BYTES} bytes")
        try:
            content: dict[str, Any] = torch.load(_at(file, 0), map_location="cpu", weights_only=True)
        except Exception as error:
            problem = f"is undamaged, but torch {torch.__version__} cannot load it: {error}"
            advice = "provide what is missing, or move it away to go on from an older one"
            raise FolderError(f"{path} {problem}; {advice}") from error
    version = content.pop("format_version", None) if isinstance(content, dict) else None
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise _UnusableError("newer", f"it has the format {version}, and this program reads up to {FORMAT_VERSION}")
    return content


def _digest(file: IO[bytes], size: int) -> bytes:
    """The digest of the first bytes of a file."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (chunk := file.read(min(size, CHUNK_BYTES))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest().encode()


def _at(file: IO[bytes], position: int) -> IO[bytes]:
    file.seek(position)
    return file
