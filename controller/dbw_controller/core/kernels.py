"""Compilation of numerical kernels, where numba is installed.

A kernel is a function on columns of numbers, in plain Python. With numba it is compiled on its first call, and the
machine code is kept in a cache beside the source; columns are NumPy arrays then. Without, the same function runs as it
is, on lists, whose items Python reads faster than those of arrays. Kernels that call each other belong in one file: the
cache notices a change of the caller's file only. Where options change here, it has to be deleted.

A container image has machine code in a folder of its own, `DBW_KERNELS`, and no place to write beside the source. numba
uses no cache that it cannot write to, so what is in that folder is copied to a temporary one.
"""

import atexit
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Column = Any  # an array or a list: kernels index both in the same way
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

try:
    if os.environ.get("DBW_CONTROLLER_COMPILE") == "0":
        raise ImportError
    numba: Any = importlib.import_module("numba")  # its type hints lack an option
    njit, typeof = numba.njit, numba.typeof
except ImportError:
    COMPILED = False
else:
    COMPILED = True
    if ready_made := os.environ.get("DBW_KERNELS"):
        numba.config.CACHE_DIR = tempfile.mkdtemp(prefix="dbw-kernels-")
        shutil.copytree(ready_made, numba.config.CACHE_DIR, dirs_exist_ok=True)
        atexit.register(shutil.rmtree, numba.config.CACHE_DIR, ignore_errors=True)


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
            machine_code: Kernel = njit(**options)(kernel)
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
    machine_code: Kernel = dispatcher.compile(tuple(map(typeof, examples)))
    return machine_code


def reals(count: int) -> Column:
    """A column of zeros."""
    return np.zeros(count) if COMPILED else [0.0] * count


def integers(count: int, value: int = 0) -> Column:
    """A column of equal integers."""
    if not COMPILED:
        return [value] * count
    return np.full(count, value, np.int32) if value else np.zeros(count, np.int32)


def column(array: Array) -> Column:
    """An array as a column."""
    return array if COMPILED else array.tolist()
