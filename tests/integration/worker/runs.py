"""Trainings of `tests.models:tiny` from their beginning to their end, with gradients of all workers."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from torch import Tensor

from tests.servers import TINY_WORK, parameter_server, worker
from tests.workers import TINY, newest

ITERATIONS = 30


def server_flags(folder: Path, workers: int = 1) -> tuple[str, ...]:
    """What a server is told that leaves its checkpoint and its log in a folder."""
    kept = ("--checkpoint-dir", str(folder), "--training-log", str(folder / "log"))
    return (*TINY, "--policy", "sync", "--min-workers", str(workers), "--iterations", str(ITERATIONS), *kept)


def trained(folder: Path, seed: int, workers: int = 1, flags: Sequence[str] = ()) -> Tensor:
    """The parameters that a training ends with; the seed is that of the workers."""
    what = (*TINY_WORK, "--seed", str(seed), *flags)
    with parameter_server(*server_flags(folder, workers)) as server, ExitStack() as stack:
        working = [stack.enter_context(worker(server.target, f"worker-{i}", *what)) for i in range(workers)]
        assert [one.wait() for one in (server, *working)] == [0] * (1 + workers)
    iteration, parameters = newest(folder)
    assert iteration == ITERATIONS
    return parameters
