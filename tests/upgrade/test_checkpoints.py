"""A training goes on from the checkpoint of the other version, with the same workers and the same training log."""

import json
from contextlib import ExitStack
from pathlib import Path

from dbw.v1.controller_pb2 import ExportJobStateResponse
from tests.recordings.checkpoint import load
from tests.servers import TINY_WORK
from tests.upgrade.conftest import Pair
from tests.upgrade.files import Files
from tests.upgrade.versions import Version
from tests.workers import TINY, is_close, newest

HALF, ALL = 10, 20
NAMES = ("a", "b")
MOMENTUM = ("--optimizer", "sgd:lr=0.1,momentum=0.9")


def train(version: Version, folder: Path, files: Files, iterations: int, *flags: str) -> dict[str, int]:
    """Train up to an iteration, with gradients of all workers, who have certificates; returns the workers' numbers."""
    kept = ("--checkpoint-dir", str(folder), "--training-log", str(folder / "log"), "--min-workers", str(len(NAMES)))
    goal = ("--iterations", str(iterations), "--policy", "sync", "--job", "kept")
    with ExitStack() as stack:
        server = version.parameter_server(*TINY, *MOMENTUM, *kept, *goal, *files.server(), *flags)
        running = stack.enter_context(server)
        what = (*TINY_WORK, *files.client("worker"))
        workers = [stack.enter_context(Version().worker(running.target, name, *what)) for name in NAMES]
        numbers = {worker.id: worker.number for worker in workers}
        assert [process.wait() for process in (running, *workers)] == [0] * (1 + len(workers)), running.logs
    return numbers


def test_a_training_goes_on_from_the_other_version_s_checkpoint_as_if_it_had_not_ended(
    pair: Pair, files: Files, tmp_path: Path
) -> None:
    folder, whole = tmp_path / "resumed", tmp_path / "whole"
    numbers = train(pair.before, folder, files, HALF)
    assert train(pair.after, folder, files, ALL, "--resume") == numbers
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == list(range(ALL))
    learnt = ExportJobStateResponse.FromString(load(folder / f"checkpoint-{ALL:012}.pt")["job_state"])
    assert learnt.header.learnt_iterations == ALL
    train(Version(), whole, files, ALL)
    (iteration, resumed), (_, expected) = newest(folder), newest(whole)
    assert iteration == ALL
    assert is_close(resumed, expected)
