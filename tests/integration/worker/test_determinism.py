"""The same training twice: what a worker computes follows from seed, worker and version, and from nothing else."""

import os
from pathlib import Path

import torch

from tests.integration.worker.runs import server_flags, trained
from tests.servers import TINY_WORK, parameter_server, wait_until, worker
from tests.workers import newest

# A loss that stands still at its tenth gradient until a test opens the gate.
LOSS = """
from torch.nn.functional import cross_entropy

calls = 0

def loss(output, target):
    global calls
    calls += 1
    if calls == 11:  # the first one was to try the model out
        open({folder!r} + "/stopped", "w").close()
        open({folder!r} + "/gate").close()
    return cross_entropy(output, target)
"""


def test_a_training_with_one_worker_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    first, same, other = (trained(tmp_path / name, seed) for name, seed in [("a", 7), ("b", 7), ("c", 8)])
    assert torch.equal(first, same)
    assert not torch.allclose(first, other, atol=1e-3)


def test_with_two_workers_it_is_the_same_whoever_comes_first(tmp_path: Path) -> None:
    """Bit for bit, too: a sum of two is the same in any order. With more it would differ by the rounding of sums."""
    first, same, other = (trained(tmp_path / name, seed, workers=2) for name, seed in [("a", 7), ("b", 7), ("c", 8)])
    assert torch.equal(first, same)
    assert not torch.allclose(first, other, atol=1e-3)
    assert not torch.allclose(first, trained(tmp_path / "d", 7), atol=1e-3), "the second one has counted"


def test_delays_change_nothing_but_time(tmp_path: Path) -> None:
    assert torch.equal(trained(tmp_path / "a", 7), trained(tmp_path / "b", 7, flags=("--delay", "exp:0.002")))


def test_a_worker_that_is_killed_and_started_again_changes_nothing(tmp_path: Path) -> None:
    undisturbed = trained(tmp_path / "a", 7)
    loss = tmp_path / "loss.py"
    loss.write_text(LOSS.format(folder=str(tmp_path)))
    os.mkfifo(tmp_path / "gate")
    what = (*TINY_WORK, "--seed", "7")
    with parameter_server(*server_flags(tmp_path / "b")) as server:
        with worker(server.target, "one", *what, "--loss", f"{loss}:loss") as one:
            wait_until((tmp_path / "stopped").exists)
            number = one.number
            one.kill()
        assert server.status().iteration == 9
        with worker(server.target, "one", *what) as again:
            assert [server.wait(), again.wait()] == [0, 0]
            assert again.number == number
    assert torch.equal(newest(tmp_path / "b")[1], undisturbed)
