"""A short time of chaos. `make chaos` causes more of it."""

from tests.chaos.__main__ import cause
from tests.chaos.nemesis import Fault

SEED = 24


def test_trainings_survive_faults_of_all_kinds_without_a_violation() -> None:
    assert cause(minutes=0.2, seed=SEED, faults=list(Fault)) == 0
