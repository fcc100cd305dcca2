"""Snapshots, exported states and checkpoints of version 1 stay readable, and what follows from them is the same."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbw.v1.controller_pb2 import ExportJobStateResponse
from tests.recordings.checkpoint import AFTER, CHECKPOINT, ITERATIONS, MORE, load, resumed
from tests.recordings.comparison import answer_of, differences
from tests.recordings.player import DATA, FLAGS, Player, names, read
from tests.servers import Controller, controller

SNAPSHOTS, EXPORTS, CHECKPOINTS = DATA / "snapshots", DATA / "exports", DATA / "checkpoint"


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A controller that was started with the folder of a former one."""
    folder = tmp_path_factory.mktemp("state")
    for path in SNAPSHOTS.glob("*.job"):
        shutil.copyfile(path, folder / path.name)
    with controller("--state-dir", str(folder), *FLAGS) as running:
        yield running


def play(player: Player, folder: Path, name: str) -> None:
    with player:
        for number, step in enumerate(read(folder, name)[1], 2):
            found = list(differences(answer_of(step), player.play(step)))
            assert not found, f"line {number} of the recording ({step.get('rpc', step.get('do'))}): {found[:10]}"


def test_every_snapshot_has_a_recording_of_what_followed() -> None:
    assert sorted(path.stem for path in SNAPSHOTS.glob("*.job")) == names(SNAPSHOTS)
    assert sorted(path.stem for path in EXPORTS.glob("*.state")) == names(EXPORTS)


@pytest.mark.parametrize("name", names(SNAPSHOTS))
def test_a_job_goes_on_from_its_snapshot_as_it_did_then(restored: Controller, name: str) -> None:
    play(Player(restored), SNAPSHOTS, name)


@pytest.mark.parametrize("name", names(EXPORTS))
def test_jobs_go_on_from_an_exported_state_as_they_did_then(restored: Controller, name: str) -> None:
    play(Player(restored, states={name: (EXPORTS / f"{name}.state").read_bytes()}), EXPORTS, name)


def test_a_training_goes_on_from_its_checkpoint_with_what_its_job_had_learnt(tmp_path: Path) -> None:
    shutil.copyfile(CHECKPOINTS / CHECKPOINT, tmp_path / CHECKPOINT)
    before = ExportJobStateResponse.FromString(load(tmp_path / CHECKPOINT)["job_state"])
    assert before.header.learnt_iterations == ITERATIONS
    recorded, found = json.loads((CHECKPOINTS / AFTER).read_text()), resumed(tmp_path)
    assert found["iterations"] == recorded["iterations"] == list(range(ITERATIONS, ITERATIONS + MORE))
    assert found["learnt_iterations"] == recorded["learnt_iterations"] == ITERATIONS + MORE
    assert found["workers"] == recorded["workers"]
    assert found["learning_rates"] == recorded["learning_rates"]
    # Without the parameters or the momentum of before, losses would be others. Processors round sums differently.
    assert found["losses"] == pytest.approx(recorded["losses"], rel=1e-3)
