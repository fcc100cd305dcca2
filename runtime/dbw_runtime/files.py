"""Files that may change while a program runs, such as certificates that are renewed."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class ReloadedFiles(Generic[T]):
    """What was read from some files; read again when any of them has changed."""

    def __init__(self, paths: Sequence[Path], read: Callable[[Sequence[Path]], T]) -> None:
        self._paths, self._read = paths, read
        self._stamps = self._complained_of = [_stamp(path) for path in paths]
        self._value = read(paths)

    def current(self) -> tuple[T, bool]:
        """The newest value that could be read, and whether it is another than the last time."""
        stamps = [_stamp(path) for path in self._paths]
        if stamps == self._stamps:
            return self._value, False
        try:
            self._value = self._read(self._paths)
        except (OSError, ValueError) as error:  # it may be half-way through being replaced: the next call tries again
            if stamps != self._complained_of:
                log.error("a file cannot be read again, what was read before stays in use: %s", error)
            self._complained_of = stamps
            return self._value, False
        self._stamps = stamps
        log.info("read again: %s", ", ".join(map(str, self._paths)))
        return self._value, True


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes with a file; None if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
