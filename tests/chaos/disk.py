"""File systems of their own for the programs under chaos, so that disks really are full and really hang.

Each is an ext4 in a file, mounted through a loop device, which only root may do. What is mounted, frozen and started
is undone by a guard, a process that waits for the end of this one, however that comes.
"""

import asyncio
import fcntl
import math
import os
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

DISK_BYTES = 64 * 2**20
FREEZE, THAW = 0xC0045877, 0xC0045878  # FIFREEZE and FITHAW of linux/fs.h
GUARD = """
trap '' HUP INT TERM
cat > /dev/null # ends with the process that has started this
cd /
for disk in "$1"/disks/*/; do fsfreeze --unfreeze "$disk"; done
for attempt in $(seq 50); do
  left=
  for process in /proc/[0-9]*; do
    case "$(readlink "$process/cwd")" in "$1" | "$1"/*) left=yes; kill -KILL "${process#/proc/}" ;; esac
  done
  for disk in "$1"/disks/*/; do if mountpoint --quiet "$disk"; then left=yes; umount "$disk"; fi; done
  [ -n "$left" ] || exit 0
  sleep 0.2
done
exit 1
"""


class Guard:
    """Undoes what happens in a folder: thaws and unmounts its disks, and kills the processes that run in it."""

    def __init__(self, folder: Path) -> None:
        (folder / "disks").mkdir()
        command = ["sh", "-c", GUARD, "guard", str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def close(self) -> bool:
        """Undo it now; returns whether nothing is left."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait() == 0


class Disk:
    """A folder on a file system of its own. `problem` says why it has none, and cannot be full or hang."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self._image = folder / "disks" / name, folder / f"{name}.ext4"
        self.folder.mkdir()
        self.problem = self._mount()
        self._device = self.folder.stat().st_dev
        self._in_use = asyncio.Lock()
        self.hurt_until = -math.inf  # on the monotonic clock: infinity while it is full or hangs
        assert (self._device != folder.stat().st_dev) == (self.problem is None)

    def _mount(self) -> str | None:
        try:
            with self._image.open("wb") as file:
                file.truncate(DISK_BYTES)
            for command in (
                ["mkfs.ext4", "-q", "-m", "0", str(self._image)],
                ["mount", "-o", "loop,noatime", str(self._image), str(self.folder)],
            ):
                subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self._image.unlink(missing_ok=True)
            return str(getattr(error, "stderr", None) or error).strip()
        return None

    @asynccontextmanager
    async def _hurting(self) -> AsyncIterator[None]:
        assert self.problem is None
        async with self._in_use:
            self.hurt_until = math.inf
            try:
                yield
            finally:
                self.hurt_until = time.monotonic()

    async def fill_for(self, seconds: float) -> None:
        """Be full for some time."""
        async with self._hurting():
            filler = self.folder / "filler"
            await asyncio.to_thread(self._fill, filler)
            try:
                await asyncio.sleep(seconds)
            finally:
                filler.unlink()

    def _fill(self, filler: Path) -> None:
        with filler.open("wb", buffering=0) as file:
            for size in (2**20, 2**12):
                with suppress(OSError):  # no space left, which is what we want
                    while True:
                        file.write(bytes(size))

    async def hang_for(self, seconds: float) -> None:
        """Hang for some time: whoever writes waits, and cannot be killed."""
        async with self._hurting():
            file = os.open(self.folder, os.O_RDONLY)
            try:
                assert os.fstat(file).st_dev == self._device, "never freeze a file system that is not ours"
                await asyncio.to_thread(fcntl.ioctl, file, FREEZE, 0)
                try:
                    await asyncio.sleep(seconds)
                finally:
                    fcntl.ioctl(file, THAW, 0)
            finally:
                os.close(file)
