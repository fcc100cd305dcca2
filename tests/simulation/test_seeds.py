"""A thousand worlds with faults, in which every invariant holds. `make simulate SEEDS=…` tries others."""

import pytest

from tests.simulation.run import run_seed

SEEDS, SEEDS_A_TEST = 1000, 25


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_nothing_hangs_and_nothing_is_lost(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        result = run_seed(seed)
        assert result.violation is None, f"{result}\n\nTo replay it: make simulate SEEDS=={seed}"
