"""How a process gets its compiled kernels: our settings as those of numba, which reads them when it is imported."""

import atexit
import shutil
import tempfile
from collections.abc import MutableMapping


def prepare(environment: MutableMapping[str, str]) -> None:
    """Set numba's variables by ours. To be called before numba is imported.

    DBW_CONTROLLER_COMPILE=0 lets kernels run as plain Python. DBW_KERNELS is a folder with machine code, which a
    container image has. numba uses no cache that it cannot write to, so it gets a copy, which is removed at exit.
    """
    if environment.get("DBW_CONTROLLER_COMPILE") == "0":
        environment["NUMBA_DISABLE_JIT"] = "1"
    elif ready_made := environment.get("DBW_KERNELS"):
        folder = tempfile.mkdtemp(prefix="dbw-kernels-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        shutil.copytree(ready_made, folder, dirs_exist_ok=True)
        environment["NUMBA_CACHE_DIR"] = folder
