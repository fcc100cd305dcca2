import subprocess

from tests.examples.claims import assert_integrated
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
