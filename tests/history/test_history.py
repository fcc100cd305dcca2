"""A real controller through kills, freezes and broken networks: whatever concurrent clients are answered makes sense.

`python -m tests.history SECONDS` runs this for longer.
"""

import random

import pytest

from tests.history.broken import DecidingTwice, WithoutFencedDeletion, WithoutFencing
from tests.history.run import check_run, run, table
from tests.servers import Controller

OPERATIONS = 1200


def test_concurrent_clients_are_answered_as_if_one_came_after_the_other() -> None:
    seed = random.randrange(10**6)
    history = run(seed, operations=OPERATIONS)
    violations = check_run(history)
    assert not violations, f"seed {seed}: {violations[0]}\n{table(history, violations)}"


@pytest.mark.parametrize("program", [WithoutFencing, WithoutFencedDeletion, DecidingTwice])
def test_a_controller_with_a_defect_is_found_out(program: type[Controller]) -> None:
    assert any(check_run(run(seed, OPERATIONS // 2, program=program)) for seed in range(4))
