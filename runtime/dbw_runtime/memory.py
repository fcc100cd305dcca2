"""Settings of the memory allocator."""

import ctypes
import platform

# glibc's names of these options, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_LARGEST, _PAD, _ARENAS = 2**30, 2**24, 2


def keep_large_buffers() -> bool:
    """Let the allocator keep and reuse buffers of megabytes; returns whether it has such a setting.

    By default glibc asks the operating system for each of them and returns it afterwards, so that every page is cleared
    and mapped again for every message; and what one thread has freed, others cannot use. Where malloc is not glibc's,
    nothing is done.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    options = {_MMAP_THRESHOLD: _LARGEST, _TRIM_THRESHOLD: _LARGEST, _TOP_PAD: _PAD, _ARENA_MAX: _ARENAS}
    return all(mallopt(name, value) == 1 for name, value in options.items())
