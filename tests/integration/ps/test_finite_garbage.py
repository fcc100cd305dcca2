"""What is finite and wrong has no trace in the parameters, and what only looks wrong stops no training."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import training_log
from dbw_ps.checkpoint import CheckpointFolder
from dbw_ps.model import FlatModel
from dbw_ps.rounds import MAX_ATTEMPTS
from tests import models
from tests.servers import parameter_server, wait_until
from tests.workers import TINY, Pace, Rogue, gradient, is_close, newest, trained, working

SYNC = (*TINY, "--policy", "sync")
OUTLIER = pb.GRADIENT_OUTCOME_OUTLIER


def has_begun(rogue: Rogue, version: int) -> bool:
    return rogue.version == version


def garbage_at(version: int, worker: int) -> bool:
    return version == 5 and worker == 1


def spoilt_once(parameters: Tensor, worker: int, version: int) -> Tensor:
    vector = gradient(parameters, worker, version)
    if garbage_at(version, worker):
        vector[3] = 1e25
    return vector


def test_one_absurd_element_gets_neither_into_the_parameters_nor_into_a_checkpoint(tmp_path: Path) -> None:
    flags = ("--min-workers", "3", "--iterations", "10", "--checkpoint-dir", str(tmp_path))
    with parameter_server(*SYNC, *flags) as server:
        with working(server.target, 3, compute=spoilt_once) as workers:
            for worker in workers:
                worker.join()
            outcomes = [worker.outcomes[5] for worker in sorted(workers, key=lambda worker: worker.number)]
            assert outcomes == [(5, pb.GRADIENT_OUTCOME_USED), (5, OUTLIER), (5, pb.GRADIENT_OUTCOME_USED)]
            before = workers[0].seen[5]
            assert is_close(workers[0].seen[6], trained(before, [0, 2], [5]))
            expected = trained(trained(before, [0, 2], [5]), range(3), range(6, 10))
        assert server.wait() == 0
        line = server.wait_for_log("a gradient was rejected", level="warning")
        assert (line["worker"], line["version"]) == (1, 5)
    assert is_close(newest(tmp_path)[1], expected)


def test_the_only_worker_computes_again_what_looks_wrong() -> None:
    """With nobody to compare it with, it may be a change of scale: a second time it is believed."""
    with parameter_server(*SYNC) as server, Rogue(server.target) as rogue:
        rogue.wait_until_expected(workers=1)
        for version in range(3):
            assert rogue.push_gradient(version, torch.ones(39)).outcome == pb.GRADIENT_OUTCOME_USED
            wait_until(partial(has_begun, rogue, version + 1))
        assert rogue.push_gradient(3, torch.full((39,), 1e6)).outcome == OUTLIER
        server.wait_for_log("none of the gradients of all 1 workers for iteration 3 can be used")
        assert 'dbw_ps_gradients_total{outcome="outlier"} 1.0' in server.metrics()
        rogue.rejoin()
        assert rogue.push_gradient(3, torch.full((39,), 1e6)).outcome == pb.GRADIENT_OUTCOME_USED
        wait_until(lambda: rogue.version == 4)


def rescaled(parameters: Tensor, worker: int, version: int) -> Tensor:
    return gradient(parameters * 0, worker, version) * (65536.0 if version >= 5 else 1.0)


def test_a_training_goes_on_when_all_norms_change() -> None:
    with parameter_server(*SYNC, "--min-workers", "3", "--iterations", "12") as server:
        with working(server.target, 3, compute=rescaled) as workers:
            for worker in workers:
                worker.join()
            assert sum(outcome == OUTLIER for worker in workers for _, outcome in worker.outcomes) <= 3 + MAX_ATTEMPTS
        assert server.wait() == 0


def test_any_norm_is_taken_where_that_is_asked_for() -> None:
    with parameter_server(*SYNC, "--max-norm-ratio", "0") as server, Rogue(server.target) as rogue:
        rogue.wait_until_expected(workers=1)
        for version, size in enumerate([1.0, 1.0, 1e20]):
            assert rogue.push_gradient(version, torch.full((39,), size)).outcome == pb.GRADIENT_OUTCOME_USED
            wait_until(partial(has_begun, rogue, version + 1))


def test_what_is_usual_is_known_after_a_restart(tmp_path: Path) -> None:
    flags = ("--checkpoint-dir", str(tmp_path), "--checkpoint-iterations", "1", "--resume")
    with parameter_server(*SYNC, *flags) as server, working(server.target, 1) as (worker,):
        worker.wait_for(5)
        assert server.stop() == 0
    with parameter_server(*SYNC, *flags) as server, Rogue(server.target) as rogue:
        assert rogue.push_gradient(rogue.wait_until_expected(workers=1), torch.full((39,), 1e25)).outcome == OUTLIER


def test_absurd_buffers_are_refused_like_absurd_gradients(tmp_path: Path) -> None:
    model = FlatModel(models.normalised())
    flags = ("--model", "tests.models:normalised", "--policy", "sync", "--min-workers", "3", "--checkpoint-dir")
    with parameter_server(*flags, str(tmp_path)) as server, ExitStack() as stack:
        rogues = [stack.enter_context(Rogue(server.target, f"rogue-{i}")) for i in range(3)]
        rogues[0].wait_until_expected(workers=3)
        for version in range(4):
            wait_until(partial(has_begun, rogues[0], version))
            for i, rogue in enumerate(rogues):
                vector = torch.ones(len(model.vector))
                is_absurd = (version, i) == (2, 1)
                vector[-1] = 1e25 if is_absurd else 1.0
                outcome = OUTLIER if is_absurd else pb.GRADIENT_OUTCOME_USED
                assert rogue.push_gradient(version, vector).outcome == outcome
        assert server.stop() == 0
    checkpoints = CheckpointFolder(tmp_path)
    found = checkpoints.newest()
    checkpoints.close()
    assert found is not None
    assert max(tensor.abs().max() for tensor in found[1]["model"].values()) < 1e3


def test_a_worker_that_always_sends_garbage_is_not_believed_when_it_is_alone(tmp_path: Path) -> None:
    """As after a restart, when the others come a moment later."""
    flags = (*SYNC, "--checkpoint-dir", str(tmp_path), "--resume", "--rejoin-seconds", "1")
    with parameter_server(*flags, "--min-workers", "3") as server, working(server.target, 3) as (worker, *_):
        worker.wait_for(5)
        assert server.stop() == 0
    iteration, parameters = newest(tmp_path)
    with parameter_server(*flags, "--min-workers", "1") as server, Rogue(server.target, "thread-0") as rogue:
        rogue.wait_until_expected(workers=1)
        for attempt in range(MAX_ATTEMPTS):
            if attempt:  # it is asked again
                wait_until(lambda: server.status().live_workers == 0)
                rogue.rejoin()
            assert rogue.push_gradient(iteration, torch.full((39,), 1e25)).outcome == OUTLIER
        assert server.wait() == 1
        server.wait_for_log("training has failed")
    assert newest(tmp_path)[0] == iteration
    assert is_close(newest(tmp_path)[1], parameters)


def test_a_worker_that_says_a_loss_far_below_zero_does_not_end_a_training(tmp_path: Path) -> None:
    path, pace = tmp_path / "log", Pace(5)
    flags = ("--policy", "static:1", "--target-loss", "0.5", "--iterations", "60", "--training-log", str(path))
    with parameter_server(*TINY, *flags) as server, working(server.target, 2, pace) as workers:
        workers[0].wait_for(5)
        with Rogue(server.target) as liar:
            for version in range(5, 55, 2):  # the others wait, and have the next one: their loss is always 1
                outcome = liar.push_gradient(version, torch.zeros(39), loss=-1e9).outcome
                assert outcome == pb.GRADIENT_OUTCOME_USED
                pace.until(version + 2)
                workers[0].wait_for(version + 2)
        pace.until(2**62)
        for worker in workers:
            worker.join()
        assert server.wait() == 0
    entries = list(training_log.read(path))
    assert len(entries) == 60
    assert {entry["loss"] for entry in entries} <= {1.0, None}
