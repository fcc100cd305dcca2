"""Threads, mixed precision, shards and types of gradients on the wire: training works with all of them."""

from pathlib import Path

import pytest

from dbw_ps.training_log import read
from tests.servers import TINY_WORK, parameter_server, worker

# A loss that writes down what it is computed with.
LOSS = """
import torch

def loss(output, target):
    with open({path!r}, "w") as file:
        file.write(f"{{output.dtype}} {{torch.get_num_threads()}}")
    return torch.nn.functional.cross_entropy(output, target)
"""


@pytest.mark.parametrize(
    ("of_worker", "of_server", "seen"),
    [
        ("--threads 2", "", "torch.float32 2"),
        ("--precision bfloat16", "", "torch.bfloat16 1"),
        ("--precision bfloat16 --parts 2", "--gradient-type bfloat16", "torch.bfloat16 1"),
        ("--shards 2", "", "torch.float32 1"),
        ("--device cpu", "--gradient-type float16", "torch.float32 1"),
        ("", "--gradient-type bfloat16", "torch.float32 1"),
        ("", "--gradient-type float64", "torch.float32 1"),
    ],
)
def test_training_works(of_worker: str, of_server: str, seen: str, tmp_path: Path) -> None:
    """Of a model with buffers, which are always sent as float32."""
    log, file, note = tmp_path / "log", tmp_path / "loss.py", tmp_path / "note"
    file.write_text(LOSS.format(path=str(note)))
    flags = ("--model", "tests.models:normalised", "--min-workers", "2", "--policy", "sync", *of_server.split())
    what = (*TINY_WORK, "--model", "tests.models:normalised", "--loss", f"{file}:loss", *of_worker.split())
    with (
        parameter_server(*flags, "--iterations", "60", "--training-log", str(log)) as server,
        worker(server.target, "one", *what) as one,
        worker(server.target, "two", *what) as two,
    ):
        assert [server.wait(), one.wait(), two.wait()] == [0, 0, 0]
    losses = [entry["loss"] for entry in read(log)]
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])
    assert note.read_text() == seen
    assert {entry["k"] for entry in read(log)} == {2}
