"""Trainings that diverge: what is not finite does not spread, and a training that cannot go on says so and ends."""

import math
import re
from pathlib import Path

import torch
from torch import Tensor

from dbw.v1 import parameter_server_pb2 as pb
from tests.servers import parameter_server
from tests.workers import Rogue, gradient, is_close, newest, trained, working

SYNC = ("--model", "tests.models:tiny", "--policy", "sync", "--accumulate", "float64")


def not_finite(parameters: Tensor, worker: int, version: int) -> Tensor:
    return gradient(parameters, worker, version) if version < 3 else torch.full_like(parameters, math.nan)


def test_a_training_whose_gradients_all_make_no_sense_ends_and_says_why() -> None:
    with parameter_server(*SYNC, "--min-workers", "2") as server:
        with working(server.target, 2, compute=not_finite):
            assert server.wait() == 1
        text = "".join(server.other_output)
        assert re.search("none of the gradients of all [12] workers for iteration 3 can be used", text)
        assert "learning rate" in text


def test_a_gradient_beyond_the_range_of_the_parameters_does_not_get_into_them() -> None:
    """Elements that are finite as float64, and would not be as float32."""
    with parameter_server(*SYNC) as server, working(server.target, 1) as (worker,):
        worker.wait_for(1)
        with Rogue(server.target) as rogue:
            version = rogue.wait_until_expected(workers=2)
            vector = torch.full((len(worker.seen[0]),), 1e100, dtype=torch.float64)
            response = rogue.push_gradient(version, vector, type=pb.ELEMENT_TYPE_FLOAT64)
            assert response.outcome == pb.GRADIENT_OUTCOME_NOT_FINITE
            rogue.leave()
            worker.wait_for(version + 1)
            assert is_close(worker.seen[version + 1], trained(worker.seen[version], [0], [version]))


def steep(parameters: Tensor, worker: int, version: int) -> Tensor:  # noqa: ARG001 (as every gradient)
    return parameters * 0 + 1000


def test_a_checkpoint_never_has_parameters_that_are_not_finite(tmp_path: Path) -> None:
    """A training that has diverged ends, and whoever resumes it would only find the same again."""
    flags = ("--optimizer", "sgd:lr=1e36", "--checkpoint-dir", str(tmp_path))
    with parameter_server(*SYNC, *flags, "--checkpoint-iterations", "1") as server:
        with working(server.target, 1, compute=steep):
            assert server.wait() == 1
        assert "can be used, perhaps because training diverges" in "".join(server.other_output)
    if list(tmp_path.glob("checkpoint-*")):
        assert newest(tmp_path)[1].isfinite().all()
