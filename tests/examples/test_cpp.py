"""The example in C++, built from the contract with what Debian has, against real controllers."""

import shutil
import subprocess

import pytest

from tests.examples import processes
from tests.examples.python import EXAMPLES

FOLDER = EXAMPLES / "cpp"
MISSING = [name for name in ("cmake", "c++", "protoc", "grpc_cpp_plugin", "pkg-config") if not shutil.which(name)]
if not MISSING and subprocess.run(["pkg-config", "--exists", "grpc++", "protobuf"]).returncode:
    MISSING = ["the development files of grpc++ and protobuf"]

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)}: the example in C++ is not built"
)


@pytest.fixture(scope="module")
def program() -> list[str]:
    build = FOLDER / "build"
    subprocess.run(["cmake", "-S", FOLDER, "-B", build], check=True)
    subprocess.run(["cmake", "--build", build, "--parallel", "2"], check=True)
    return [str(build / "parameter_server")]


@pytest.mark.parametrize("transport", ["stream", "unary"])
def test_it_trains_as_decided(program: list[str], transport: str) -> None:
    processes.assert_trains(program, FOLDER, transport)


@pytest.mark.parametrize("transport", ["stream", "unary"])
def test_it_goes_on_while_the_controller_is_restarted(program: list[str], transport: str) -> None:
    processes.assert_survives_a_restart(program, FOLDER, transport)


def test_it_goes_on_when_streams_end(program: list[str]) -> None:
    processes.assert_survives_streams_that_end(program, FOLDER)


@pytest.mark.parametrize("transport", ["stream", "unary"])
def test_it_goes_on_and_ends_while_the_controller_is_frozen(program: list[str], transport: str) -> None:
    processes.assert_survives_a_frozen_controller(program, FOLDER, transport)


def test_it_waits_for_one_worker_at_least_and_for_all_at_most(program: list[str]) -> None:
    processes.assert_waits_for_one_worker_to_all(program, FOLDER)


@pytest.mark.parametrize("transport", ["stream", "unary"])
def test_it_leaves_a_job_that_was_taken_over(program: list[str], transport: str) -> None:
    processes.assert_leaves_a_job_that_was_taken_over(program, FOLDER, transport)


def test_it_goes_on_without_a_controller(program: list[str]) -> None:
    processes.assert_goes_on_without_a_controller(program, FOLDER)


def test_it_refuses_wrong_usage(program: list[str]) -> None:
    processes.assert_refuses_wrong_usage(program, FOLDER)
