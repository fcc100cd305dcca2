"""A short time of fuzzing, with the same seed every time. `make fuzz` does more of it."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.__main__ import SHORT_CALLS, fuzz_decoders
from tests.fuzz.calls import DOCUMENTED
from tests.fuzz.rpcs import fuzz_controller, fuzz_parameter_server

SEED = 25


def enough(calls: int) -> bool:
    return calls >= SHORT_CALLS


@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is for Linux only: DECODERS ARE NOT FUZZED")
def test_decoders_take_what_they_can_and_refuse_all_else_as_documented() -> None:
    assert fuzz_decoders(SEED) == []


def test_a_controller_answers_all_calls_as_documented_and_serves_a_good_client(tmp_path: Path) -> None:
    assert fuzz_controller(SEED, enough, tmp_path) == []


def test_a_parameter_server_answers_all_calls_as_documented_and_goes_on_training() -> None:
    assert fuzz_parameter_server(SEED, enough) == []


def test_every_reason_of_the_contract_but_a_bug_is_documented_with_its_status() -> None:
    assert ("NOT_FOUND", "JOB_NOT_FOUND") in DOCUMENTED
    assert ("UNAVAILABLE", "DISK_FAILED") in DOCUMENTED
    assert "BUG" not in {reason for _, reason in DOCUMENTED}
