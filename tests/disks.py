"""A disk of its own for a test: a file system in a file, which really hangs. Only root may mount it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BYTES = 32 * 2**20
# Undoes everything when this process has ended, however that came: nobody can kill who waits for a frozen disk.
GUARD = 'cat > /dev/null; fsfreeze --unfreeze "$1"; umount --lazy "$1"'


class Disk:
    """A mounted disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let whoever writes wait until the end of the block."""
        subprocess.run(["fsfreeze", "--freeze", self.folder], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", self.folder], check=True)


@contextmanager
def mounted_disk(folder: Path) -> Iterator[Disk]:
    """A disk that is mounted somewhere below a folder; skips the test where that cannot be done."""
    image, mounted = folder / "disk.ext4", folder / "disk"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(BYTES)
    for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(mounted)]):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
            pytest.skip(f"NOT TESTED: a disk that really hangs, because none can be mounted here: {why}")
    guard = subprocess.Popen(
        ["sh", "-c", GUARD, "guard", mounted], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield Disk(mounted)
    finally:
        guard.communicate()
