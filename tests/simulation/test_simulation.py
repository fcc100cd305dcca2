"""The simulator itself: a seed is a world, and always the same one."""

import pytest

from tests.simulation.run import run_seed


@pytest.mark.parametrize("seed", range(8))
def test_a_seed_replays_the_same_events(seed: int) -> None:
    assert run_seed(seed) == run_seed(seed)
