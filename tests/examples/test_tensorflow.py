import subprocess
from pathlib import Path

from tests.examples.claims import assert_integrated
from tests.examples.hanging import HUNG, assert_went_on, deciding
from tests.examples.python import EXAMPLES, PYTHON, needs
from tests.examples.recorder import recorded
from tests.servers import PATIENCE, controller

WORKERS, ITERATIONS = 8, 60
pytestmark = needs("tensorflow")


def run_example(target: str, iterations: int) -> "subprocess.CompletedProcess[str]":
    """Train to the end."""
    flags = ["--controller", target, "--job", "example", "--workers", str(WORKERS), "--iterations", str(iterations)]
    command = [PYTHON, str(EXAMPLES / "tensorflow/train.py"), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)


def test_it_waits_for_as_many_gradients_as_the_controller_says() -> None:
    with controller() as server, recorded(server.target) as seen:
        done = run_example(seen.target, ITERATIONS)
    assert done.returncode == 0, done.stderr
    assert f"after {ITERATIONS} iterations" in done.stdout
    assert_integrated(seen.job("example"), WORKERS, ITERATIONS)


def test_it_waits_for_all_workers_where_there_is_no_controller() -> None:
    done = run_example("127.0.0.1:1", 5)
    assert done.returncode == 0, done.stderr
    assert f"k = {WORKERS}" in done.stdout
    assert "after 5 iterations" in done.stdout


def test_it_goes_on_and_ends_while_five_of_six_workers_hang_for_good() -> None:
    with controller() as server, deciding(server.target, HUNG + 1, 0.3) as target, recorded(target) as seen:
        flags = ["--controller", seen.target, "--job", "example", "--workers", str(HUNG + 1)]
        program = [
            PYTHON,
            str(Path(__file__).with_name("tensorflow_hanging.py")),
            str(EXAMPLES / "tensorflow/train.py"),
        ]
        command = [*program, *flags, "--iterations", "50"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert_went_on(seen.job("example"))
