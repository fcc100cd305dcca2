"""Models, data sets and losses of users, by the place of a function; and what must fit the server's."""

from pathlib import Path

import pytest

from dbw_ps.training_log import read
from tests.servers import TINY_WORK, parameter_server, worker

CODE = """
import torch
from torch import nn
from torch.utils.data import Dataset


class Line(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        angle = torch.tensor([index / 128 - 1])
        return angle, 1 - 2 * angle


def build():
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))


def loss(output, target):
    return (output - target).abs().mean()
"""


def losses(path: Path) -> list[float]:
    return [entry["loss"] for entry in read(path)]


def test_a_user_s_file_is_trained(tmp_path: Path) -> None:
    """Its data set gives one example at a time, as most do."""
    file, log = tmp_path / "mine.py", tmp_path / "log"
    file.write_text(CODE)
    what = ("--model", f"{file}:build", "--dataset", f"{file}:Line", "--loss", f"{file}:loss")
    flags = ("--optimizer", "adam:lr=0.01", "--iterations", "150", "--training-log", str(log), "--min-workers", "2")
    with (
        parameter_server("--model", f"{file}:build", *flags) as server,
        worker(server.target, "one", *what) as one,
        worker(server.target, "two", *what) as two,
    ):
        assert [server.wait(), one.wait(), two.wait()] == [0, 0, 0]
        assert "training is over" in [line["message"] for line in one.logs]
    assert sum(losses(log)[-10:]) < 0.5 * sum(losses(log)[:10])


@pytest.mark.parametrize("loss", ["tests.models:margin_loss", "cross-entropy"])
def test_a_user_s_module_is_trained(loss: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = ("--model", "tests.models:tiny", "--iterations", "100", "--training-log", str(log))
    with parameter_server(*flags) as server, worker(server.target, "one", *TINY_WORK, "--loss", loss) as one:
        assert [server.wait(), one.wait()] == [0, 0]
    assert sum(losses(log)[-10:]) < 0.7 * sum(losses(log)[:10])


OTHERS = """
from torch import nn

def flat(): return nn.Linear(5, 3)
def wide(): return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 7))
"""


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("{file}:flat", "the parameter 0.weight is missing"),
        ("tests.models:normalised", "the parameter 2.weight is missing"),
        ("{file}:wide", "the parameter 2.weight has the shape (7, 4) instead of (3, 4)"),
    ],
)
def test_a_worker_with_another_model_ends_and_says_what_differs(model: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "others.py"
    file.write_text(OTHERS)
    what = (*TINY_WORK, "--model", model.format(file=file))
    with parameter_server("--model", "tests.models:tiny") as server, worker(server.target, "other", *what) as other:
        assert other.wait() == 1
        assert "dbw worker: " in other.other_output[-1]
        assert text in other.other_output[-1]
        assert not server.status().workers, "it has not become a worker"


FAILING = """
from torch.nn.functional import cross_entropy

left = {calls}

def loss(output, target):
    global left
    left -= 1
    if left < 0:
        raise RuntimeError("no idea")
    return cross_entropy(output, target)
"""


@pytest.mark.parametrize("calls", [0, 5])
def test_a_worker_whose_code_fails_does_not_join_or_leaves_with_what_went_wrong(calls: int, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(FAILING.format(calls=calls))
    with (
        parameter_server("--model", "tests.models:tiny") as server,
        worker(server.target, "wrong", *TINY_WORK, "--loss", f"{file}:loss") as wrong,
    ):
        assert wrong.wait() == (1 if calls else 2)
        assert "no idea" in wrong.other_output[-1]
        if calls:
            server.wait_for_log("a worker has left: RuntimeError('no idea')", worker_id="wrong")
        else:
            assert not server.status().workers


def test_a_second_worker_of_the_same_name_takes_the_place_of_the_first() -> None:
    with (
        parameter_server("--model", "tests.models:tiny", "--min-workers", "2") as server,
        worker(server.target, "same", *TINY_WORK) as first,
    ):
        first.wait_for_log("joined")
        with worker(server.target, "same", *TINY_WORK) as second:
            assert second.number == first.number
            assert first.wait() == 1
            assert "same" in first.other_output[-1]
            assert [one.live for one in server.status().workers] == [True]
