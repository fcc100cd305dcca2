"""What a parameter server goes on from: never from less than there is, unless it is told to."""

import re
from pathlib import Path

import pytest

from benchmarks._delayed import delayed
from dbw.v1 import controller_pb2 as pb
from dbw_controller.client import DbwClient
from dbw_ps.training_log import read
from tests.programs import ADDRESSES, Program
from tests.servers import PATIENCE, Controller, controller, parameter_server, wait_until
from tests.workers import TINY, Pace, Rogue, working

NO_CHECKPOINT = r"but .* has no usable checkpoint of it: mount the folder that has them, or begin again with --fresh"
PATIENT = ("--decision-deadline", "60", "--decision-share", "1e9")  # waits for every decision


def job_of(server: Controller) -> tuple[int, int]:
    """How far the job has come, and how much it has learnt."""
    with server.stub() as stub:
        job = stub.GetJob(pb.GetJobRequest(job="training")).job
    return job.decision.iteration, job.learnt_iterations


def iterations(log: Path) -> list[int]:
    return [entry["iteration"] for entry in read(log)]


def train(count: int, *flags: str, log: Path | None = None, decider: Controller | None = None) -> None:
    """Train this far and no further, and be killed once the log and the controller, if they are given, know it."""
    with parameter_server(*TINY, *flags) as server, working(server.target, 2, Pace(count)):
        wait_until(lambda: server.status().iteration == count)
        wait_until(lambda: log is None or iterations(log) == list(range(count)))
        wait_until(lambda: decider is None or job_of(decider)[0] == count)
        server.kill()


def refuse(*flags: str) -> str:
    """What a parameter server says that ends with a wrong usage."""
    done = Program("dbw_ps", (*ADDRESSES, *TINY, *flags)).run()
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_a_log_without_its_checkpoints_is_left_alone_and_begins_again_only_if_that_is_meant(tmp_path: Path) -> None:
    log, lost, empty = tmp_path / "log", tmp_path / "lost", tmp_path / "empty"
    kept = ("--training-log", str(log), "--resume", "--checkpoint-dir")
    train(5, *kept, str(lost), log=log)
    before = log.read_bytes()
    for _ in range(2):  # an orchestrator tries again
        assert re.search(f"training log .* has begun, {NO_CHECKPOINT}", refuse(*kept, str(empty)))
    assert log.read_bytes() == before
    train(3, *kept, str(empty), "--fresh", log=log)
    assert Path(f"{log}.removed-1").read_bytes() == before


def test_a_controller_s_job_without_its_checkpoints_is_left_alone_and_begins_again_only_if_that_is_meant(
    tmp_path: Path,
) -> None:
    lost, empty = tmp_path / "lost", tmp_path / "empty"
    with controller() as decider:
        kept = ("--controller", decider.target, *PATIENT, "--resume", "--checkpoint-dir")
        train(5, *kept, str(lost), decider=decider)
        for _ in range(2):
            assert re.search(f"job training has come to iteration 5, {NO_CHECKPOINT}", refuse(*kept, str(empty)))
        assert job_of(decider) == (5, 5)
        with parameter_server(*TINY, *kept, str(empty), "--fresh") as server, Rogue(server.target):
            wait_until(lambda: server.status().k > 0)
            assert job_of(decider) == (0, 5)


def test_a_controller_that_is_far_away_is_asked_as_well(tmp_path: Path) -> None:
    with controller() as decider, delayed(decider.target, 0.4) as way:
        DbwClient(decider.target, deadline=PATIENCE).job("training", workers=2, iteration=5).close()
        flags = ("--controller", way.address, "--resume", "--checkpoint-dir", str(tmp_path))
        assert "job training has come to iteration 5" in refuse(*flags)
        assert job_of(decider)[0] == 5


@pytest.mark.parametrize("fresh", [(), ("--fresh",)], ids=["without", "with"])
def test_a_crash_before_the_first_checkpoint_that_is_due_needs_nobody(tmp_path: Path, fresh: tuple[str, ...]) -> None:
    log = tmp_path / "log"
    with controller() as decider:
        kept = ("--controller", decider.target, "--training-log", str(log), "--checkpoint-seconds", "0")
        flags = (*kept, "--checkpoint-dir", str(tmp_path / "checkpoints"), "--resume", *fresh)
        train(5, *flags, log=log)
        train(3, *flags, log=log)
        assert iterations(Path(f"{log}.removed-1")) == list(range(5))


def test_a_controller_that_cannot_be_asked_does_not_keep_a_training_from_beginning(tmp_path: Path) -> None:
    with controller() as decider:
        nobody = decider.target
    flags = ("--controller", nobody, "--checkpoint-dir", str(tmp_path), "--resume")
    with parameter_server(*TINY, *flags) as server:
        server.wait_for_log("the controller does not say whether it has the job")
        server.wait_for_log("ready")
        assert server.status().checkpoint_iteration == 0


def test_a_training_does_not_begin_without_its_first_checkpoint(tmp_path: Path) -> None:
    script = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))"
    model = tmp_path / "model.py"
    model.write_text(f"from tests.models import tiny\n{script}\n")
    flags = ("--model", f"{model}:tiny", "--checkpoint-dir", str(tmp_path / "checkpoints"), "--resume")
    done = Program("dbw_ps", (*ADDRESSES, *flags, "--log-level", "error")).run()
    assert done.returncode == 1
    assert "dbw ps: training does not begin without its first checkpoint, which cannot be written" in done.stderr


def test_a_controller_that_has_learnt_more_than_the_checkpoint_keeps_it(tmp_path: Path) -> None:
    with controller() as decider:
        saved_at_end = ("--checkpoint-dir", str(tmp_path), "--checkpoint-seconds", "0")
        kept = ("--controller", decider.target, *PATIENT, *saved_at_end)
        with parameter_server(*TINY, *kept) as server, working(server.target, 2, Pace(20)):
            wait_until(lambda: server.status().iteration == 20 and job_of(decider) == (20, 20))
            assert server.stop() == 0
        train(35, *kept, "--resume", decider=decider)
        with parameter_server(*TINY, *kept, "--resume") as again, Rogue(again.target):  # which sends no gradient
            wait_until(lambda: again.status().k > 0)
            assert again.status().iteration == 20
            assert job_of(decider)[1] == 35
