"""A whole training: a controller, a parameter server and workers, each a process of its own, on real images."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps.checkpoint import CheckpointFolder
from dbw_ps.model import load_model
from dbw_ps.training_log import read
from dbw_worker import datasets
from dbw_worker.evaluation import accuracy
from tests.servers import controller, parameter_server, wait_until, worker

WORKERS = 4
PATIENT = ("--decision-deadline", "60", "--decision-share", "1e9")  # waits for every decision
TARGET = 0.2  # the mean loss of ten iterations that ends training
# One worker is much slower than the others, so that waiting for all would be a waste.
DELAY = "shifted-exp:0.002,0.002 * factors:1,1,1,20"


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the digits, for workers to read."""
    folder = tmp_path_factory.mktemp("data")
    datasets.load("digits", folder)
    return folder


# Each mode, and what it alone makes of gradients that are too late.
MODES = {"push-wait": "notified", "push-interrupt": "interrupted", "pull": "late"}


@pytest.mark.parametrize("mode", MODES)
def test_paper_workers_learn_to_read_digits_with_as_many_gradients_as_the_controller_decides(
    mode: str, tmp_path: Path, data_folder: Path
) -> None:
    log, folder = tmp_path / "log", tmp_path / "checkpoints"
    flags = ("--model", "mlp", "--optimizer", "sgd:lr=0.1", "--target-loss", str(TARGET), "--sync-mode", mode)
    kept = ("--checkpoint-dir", str(folder), "--training-log", str(log), "--min-workers", str(WORKERS))
    what = ("--model", "mlp", "--dataset", "digits", "--data-dir", str(data_folder), "--delay", DELAY)
    with ExitStack() as stack:
        deciding = stack.enter_context(controller())
        decisions = ("--controller", deciding.target, "--policy", "dbw", *PATIENT, "--job", "e2e")
        server = stack.enter_context(parameter_server(*flags, *kept, *decisions))
        ids = [f"worker-{i}" for i in range(WORKERS)]
        workers = [stack.enter_context(worker(server.target, id_, *what)) for id_ in ids]
        wait_until(lambda: server.status().decision_source == pb.DECISION_SOURCE_CONTROLLER)
        assert [one.wait() for one in (server, *workers)] == [0] * (1 + WORKERS)
        learnt = deciding.wait_for_log("deleted", job="e2e")["learnt_iterations"]
        assert deciding.stop() == 0
        for one in (server, *workers):
            assert one.other_output == []
            assert not [line for line in one.logs if line["level"] in ("warning", "error")]
        outcomes = {line["message"] for one in workers for line in one.logs if line["logger"] == "dbw_worker.work"}
    assert {"gradient: used", f"gradient: {MODES[mode]}"} <= outcomes
    entries = list(read(log))
    assert learnt == len(entries), "the controller was told of every iteration, and none was done without it"
    assert sum(entry["loss"] for entry in entries[-10:]) / 10 <= TARGET
    assert sum(entry["loss"] for entry in entries[:5]) / 5 > 2 * TARGET, "it had something to learn"
    decided = {entry["decided_k"] for entry in entries}
    assert decided <= set(range(1, WORKERS + 1))
    assert len(decided) > 1, "k is dynamic"
    assert accuracy_of(folder, data_folder) > 0.9


def accuracy_of(folder: Path, data_folder: Path) -> float:
    """How many of the held-out digits the model of the newest checkpoint gets right."""
    checkpoints = CheckpointFolder(folder)
    found = checkpoints.newest()
    checkpoints.close()
    assert found is not None
    model = load_model("mlp")
    model.load_state_dict(found[1]["model"])
    return accuracy(model, datasets.load("digits", data_folder).held_out)
