"""Snapshots of jobs in a folder, one file a job. A process may be killed at any line of this.

A file begins with a digest of the rest, so that what a failing disk makes of it is noticed.
"""

import hashlib
import logging
from contextlib import suppress
from pathlib import Path

from dbw_controller.core.errors import JobError, NotSupportedError, StateDamagedError, StateFormatUnknownError
from dbw_runtime.durable import (
    TEMPORARY,
    FolderError,
    atomic_write,
    flush_folder,
    lock_folder,
    require_lock,
    set_aside,
    unusable,
)

log = logging.getLogger(__name__)
MAGIC = b"dbw job\n"
SUFFIX = ".job"


class SnapshotStore:
    """A folder of snapshots that this process alone uses."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, lock_folder(folder, "controller")

    def names(self) -> list[str]:
        """The jobs that there are snapshots of. What a killed process left half-written is removed."""
        try:
            paths = sorted(self._folder.iterdir())
        except OSError as error:
            raise unusable(self._folder, error) from error
        for path in paths:
            if path.suffix == TEMPORARY:
                with suppress(OSError):  # the next snapshot replaces it
                    path.unlink()
        return [path.stem for path in paths if path.suffix == SUFFIX]

    def read(self, name: str) -> bytes:
        """The snapshot of a job; refuses a damaged one."""
        content = self._path(name).read_bytes()
        digest, data = content[len(MAGIC) : len(MAGIC) + 32], content[len(MAGIC) + 32 :]
        if not content.startswith(MAGIC) or hashlib.sha256(data).digest() != digest:
            raise StateDamagedError(f"its digest does not match its {len(content)} bytes")
        return data

    def write(self, name: str, data: bytes) -> None:
        """Replace the snapshot of a job."""
        require_lock(self._folder, self._lock)
        with atomic_write(self._path(name)) as file:
            file.write(MAGIC + hashlib.sha256(data).digest())
            file.write(data)

    def delete(self, name: str) -> None:
        """Remove the snapshot of a job, if there is one, and what a write that failed left of the next one."""
        require_lock(self._folder, self._lock)
        path = self._path(name)
        for file in (path.with_name(path.name + TEMPORARY), path):
            file.unlink(missing_ok=True)
        flush_folder(self._folder)

    def set_aside(self, name: str, error: JobError) -> None:
        """Keep a snapshot that cannot be used for somebody to look at, out of the way of new ones."""
        kinds: dict[type, str] = {StateFormatUnknownError: "newer", NotSupportedError: "unsupported"}
        aside = set_aside(self._path(name), kinds.get(type(error), "damaged"))
        log.error("its snapshot cannot be used and was set aside as %s: %s", aside, error, extra={"job": name})

    def unreadable(self, name: str, error: OSError | MemoryError) -> FolderError:
        """What to raise where the machine fails to read a snapshot, which may be a good one."""
        why = str(error) or "there is not enough memory"
        text = f"the snapshot {self._path(name)} cannot be read: {why}; mend that, or move the file away"
        return FolderError(f"{text} to have its job start from nothing")

    def close(self) -> None:
        """Let another process use the folder."""
        self._lock.close()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{SUFFIX}"
