"""The example in TypeScript, with types generated from the contract, against real controllers."""

import subprocess

import pytest

from tests.examples import processes
from tests.examples.python import EXAMPLES
from tests.node import install, needs_node

FOLDER = EXAMPLES / "node"
pytestmark = needs_node


@pytest.fixture(scope="module")
def program() -> list[str]:
    install(FOLDER)
    subprocess.run(["npm", "run", "build"], cwd=FOLDER, check=True)
    return ["node", "build/parameter_server.js"]


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
