"""Compilation of numerical kernels, where numba is installed.

A kernel is a function on columns of numbers, in plain Python. With numba it is compiled on its first call, and the
machine code is kept in a cache beside the source; columns are NumPy arrays then. Without numba, or with its variable
`NUMBA_DISABLE_JIT=1`, the same function runs as it is, on lists, whose items Python reads faster than those of arrays.
Kernels that call each other belong in one file: the cache notices a change of the caller's file only. Where options
change here, the cache has to be deleted.
"""

import importlib
import mmap
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Column = Any  # an array or a list: kernels index both in the same way
HUGE_PAGE = 2 * 2**20
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

try:
    numba: Any = importlib.import_module("numba")  # its type hints lack an option
except ImportError:
    COMPILED = False
else:
    COMPILED = not numba.config.DISABLE_JIT


def compiled(kernel: Kernel, **more: object) -> Kernel:
    """Compile a kernel, if that is possible here, with more of numba's options. It must not allocate memory."""
    if not COMPILED:
        return kernel
    # Kernels run while other threads do. Handing all columns of a grid from one kernel to another would take as long as
    # what most do with them, so they become one; counting references to columns would take several times as long, and
    # the option that leaves it out is not an official one.
    options: dict[str, Any] = {"nogil": True, "cache": True, "forceinline": True, "_nrt": False, **more}
    while True:
        try:
            machine_code: Kernel = numba.njit(**options)(kernel)
        except KeyError:  # a version of numba without that option
            del options["_nrt"]
        except RuntimeError:  # nowhere to keep a cache: neither beside the source nor in a home directory
            del options["cache"]
        else:
            return machine_code


def direct(kernel: Kernel, *examples: object) -> Kernel:
    """A compiled kernel for arguments of the same types as these, and for no others: it does not look at them.

    Otherwise numba finds out the types of all columns of a grid on every call, which takes longer than most kernels do.
    """
    if not COMPILED:
        return kernel
    dispatcher: Any = kernel
    machine_code: Kernel = dispatcher.compile(tuple(map(numba.typeof, examples)))
    return machine_code


def reals(count: int) -> Column:
    """A column of zeros, which takes memory only where something is written."""
    return _zeros(count, np.float64) if COMPILED else [0.0] * count


def integers(count: int, value: int = 0) -> Column:
    """A column of equal integers."""
    if not COMPILED:
        return [value] * count
    return np.full(count, value, np.int32) if value else _zeros(count, np.int32)


def _zeros(count: int, kind: Any) -> Column:  # noqa: ANN401 (a type of numbers)
    size = count * np.dtype(kind).itemsize
    if size < HUGE_PAGE or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(count, kind)
    # NumPy asks for huge pages, of which a single number takes a whole one: a large job's few sampled rows, far apart
    # in a dozen columns, would take gigabytes.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, kind)


def column(array: Array) -> Column:
    """An array as a column."""
    return array if COMPILED else array.tolist()
