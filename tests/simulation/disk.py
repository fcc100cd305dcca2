"""Disks of simulated processes: real files, and system calls that fail or hang where the process' disk does."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.simulation.loop import PROCESS, DiskHangsError, VirtualLoop

# Of the module os, which all that is to last goes through.
CALLS = ("write", "fsync", "ftruncate", "unlink", "replace", "rename")


@contextmanager
def simulated_disks(loop: VirtualLoop, violated: Callable[[str], object]) -> Iterator[None]:
    """Let the disks of processes hang or be full. An event loop that waits for one is a violation."""

    def guarded(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def guard(*arguments: Any, **named: Any) -> Any:
            process = PROCESS.get()
            if process is not None and process.disk_hangs_until > loop.time():
                if not loop.in_thread:
                    violated(f"the event loop of {process.name} waits for a disk that hangs, in os.{name}")
                raise DiskHangsError(process.disk_hangs_until)
            if process is not None and process.disk_is_full and name != "ftruncate":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments, **named)

        return guard

    with ExitStack() as patches:
        for name in CALLS:
            patches.enter_context(patch.object(os, name, guarded(getattr(os, name), name)))
        yield
