import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.claims import assert_integrated
from tests.examples.hanging import HUNG, assert_went_on, deciding, descendants, stopped, wait_until_gone_on
from tests.examples.python import EXAMPLES
from tests.examples.recorder import recorded
from tests.examples.running import started, wait_for_line
from tests.servers import PATIENCE, controller

WORKERS, ITERATIONS = 4, 60
TRAIN = str(EXAMPLES / "torch_distributed/train.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS + 1}"]
LAUNCHERS = {"spawn": [TRAIN, "--workers", str(WORKERS)], "torchrun": [*TORCHRUN, TRAIN]}


def run_example(launcher: str, target: str, iterations: int) -> "subprocess.CompletedProcess[str]":
    """Train until all processes have ended."""
    flags = ["--controller", target, "--job", "example", "--iterations", str(iterations)]
    command = [sys.executable, *LAUNCHERS[launcher], *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_rank_0_waits_for_as_many_gradients_as_the_controller_says(launcher: str) -> None:
    with controller() as server, recorded(server.target) as seen:
        done = run_example(launcher, seen.target, ITERATIONS)
    assert done.returncode == 0, done.stderr
    assert f"after {ITERATIONS} iterations" in done.stdout
    assert_integrated(seen.job("example"), WORKERS, ITERATIONS)


def test_it_waits_for_all_workers_where_there_is_no_controller() -> None:
    done = run_example("spawn", "127.0.0.1:1", 5)
    assert done.returncode == 0, done.stderr
    assert f"k = {WORKERS}" in done.stdout
    assert "after 5 iterations" in done.stdout


def ranks(process: int) -> list[int]:
    """The processes of all ranks but the first."""
    spawned = [child for child in descendants(process) if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    return spawned[1:]


def test_it_goes_on_and_ends_while_workers_hang_one_of_them_for_good() -> None:
    with controller() as server, deciding(server.target, HUNG + 1, 0.3) as target, recorded(target) as seen:
        flags = ("--controller", seen.target, "--job", "example", "--workers", str(HUNG + 1), "--iterations", "120")
        with started(sys.executable, "-u", TRAIN, *flags, patience=2 * PATIENCE) as process:
            wait_for_line(process, "iteration 10,")
            for_good, *others = hanging = ranks(process.pid)[1:]
            assert len(hanging) == HUNG
            with stopped([for_good], signal.SIGKILL):
                with stopped(others):
                    wait_until_gone_on(seen.job("example"))
                wait_for_line(process, "loss ")
                assert process.wait(PATIENCE) == 0
        assert_went_on(seen.job("example"))
