"""How a worker is told what to do, and how it says what it was told wrong."""

import re
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.programs import Program
from tests.servers import TINY_WORK, Worker, worker

USER_CODE = """
from torch import nn
from torch.utils.data import IterableDataset

SIZE = 3

def nothing(): return None
def broken(): return 1 / 0
def frozen(): return nn.Linear(3, 3).requires_grad_(False)

class Endless(IterableDataset):
    def __iter__(self): return iter([])
"""
WRONG = {
    "--server nowhere": r"--server is 'nowhere'; it must be HOST:PORT",
    "--model huge": r"--model is 'huge'; it must be one of mlp, mnist-cnn, .*resnet18, or package\.module:function",
    "--model nowhere:build": r"--model is 'nowhere:build'; .*there is no module nowhere",
    "--model missing.py:build": r"--model is 'missing\.py:build'; .*there is no file /.*missing\.py",
    "--model tests.models:none": r"tests\.models has no none, but .*tiny",
    "--model {code}:SIZE": r"SIZE is no function but of type int",
    "--model {code}:nothing": r"nothing\(\) returned something of type NoneType",
    "--model {code}:broken": r"broken\(\) failed with ZeroDivisionError",
    "--model {code}:frozen": r"--model is .* must be one that can be trained here: the model has nothing to train",
    "--dataset imagenet": r"--dataset is 'imagenet'; it must be .*; or one of digits, mnist, fashion-mnist, cifar10",
    "--dataset {code}:nothing": r"nothing\(\) returned something of type NoneType",
    "--dataset {code}:Endless": r"--dataset is .*:Endless'; it must be .*length",
    "--shards 0": r"--shards is 0; it must be between 1",
    "--shards 20": r"--batch-size is 16; it must be less: .*a share of 1/20 of 200 examples",
    "--batch-size 0": r"--batch-size is 0; it must be between 1",
    "--batch-size many": r"--batch-size is 'many'; it must be an integer",
    "--batch-size 201": r"--batch-size is 201; it must be less: .*cannot be had from 200 examples",
    "--parts 0": r"--parts is 0; it must be between 1",
    "--parts 3": r"--parts is 3; it must be a divisor of the batch size, 16",
    "--loss best": r"--loss is 'best'; it must be one of cross-entropy, mse, or package\.module:function",
    "--loss tests.models:none": r"tests\.models has no none",
    "--loss mse": r"no gradient of tests.models:tiny on tests.models:examples can be computed: .* must fit together",
    "--device quick": r"--device is 'quick'; it must be auto, cpu, or a GPU that is there",
    "--device cuda:77": r"--device is 'cuda:77'; it must be auto, cpu, or a GPU that is there",
    "--precision float8": r"--precision is 'float8'; it must be one of float32, bfloat16",
    "--device meta": r"--device is 'meta'; it must be auto, cpu, or a GPU that is there",
    "--threads 0": r"--threads is 0; it must be between 1",
    "--seed -1": r"--seed is -1; it must be between 0",
    "--delay slow": r"--delay is 'slow'; it must be a delay; the delay 'slow' needs to begin with one of none",
    "--delay trace:missing.csv": r"needs a CSV file that can be read: .*missing\.csv",
    "--patience 0": r"--patience is 0\.0; it must be between 1",
    "--metrics-listen 9466": r"--metrics-listen is '9466'; it must be HOST:PORT",
    "--tls-cert {code}": r"a certificate and its private key go together",
    "--token-file missing": r"--token-file is .*missing.*; it must be a file with a bearer token; .*No such file",
    "--log-format xml": r"--log-format is 'xml'; it must be one of text, json",
    "--config missing.toml": r"the file missing\.toml cannot be read",
    "--speed 3": r"unrecognized arguments: --speed 3",
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Worker]:
    """Workers with each of these flags, side by side."""
    code = tmp_path_factory.mktemp("options") / "code.py"
    code.write_text(USER_CODE)

    ended = {}
    for some in batched(WRONG, 4):
        with ExitStack() as stack:
            for flags in some:
                what = (*TINY_WORK, *flags.format(code=code).split())
                ended[flags] = stack.enter_context(worker("127.0.0.1:1", "wrong", *what))
            for flags in some:
                ended[flags].wait()
    return ended


def batched(names: Iterable[str], size: int) -> list[list[str]]:
    every = list(names)
    return [every[i : i + size] for i in range(0, len(every), size)]


@pytest.mark.parametrize("flags", WRONG)
def test_a_wrong_value_is_refused_with_what_is_expected(flags: str, ended: dict[str, Worker]) -> None:
    one = ended[flags]
    assert one.process.poll() == 2
    assert one.other_output[-1].startswith("dbw worker: error: ")
    assert re.search(WRONG[flags], one.other_output[-1])
    assert "Traceback" not in "".join(one.other_output)


def test_a_data_set_that_is_not_there_ends_the_program_with_how_to_get_it(tmp_path: Path) -> None:
    flags = ("--model", "tests.models:tiny", "--dataset", "mnist", "--data-dir", str(tmp_path))
    done = Program("dbw_worker", flags).run()
    assert done.returncode == 1
    assert f"`dbw data get mnist --dir {tmp_path}`" in done.stderr.splitlines()[-1]
