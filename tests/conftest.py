import os
from pathlib import Path

# Tests run side by side. Threads of PyTorch and NumPy wait for each other without sleeping, and would keep the
# processors from all other tests. Programs that tests start have this variable, too.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import HealthCheck, settings

# Tests make no claims about elapsed time. In CI they try the same examples every time, elsewhere always new ones.
slow = [HealthCheck.too_slow]
settings.register_profile("dbw", deadline=None, suppress_health_check=slow, derandomize="CI" in os.environ)
settings.load_profile("dbw")

SLOW = ("simulation", "e2e", "chaos", "upgrade", "examples", "history", "charts", "integration")  # the slowest first
FOLDERS = [Path(__file__).parent / name for name in SLOW]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """With `-n auto` more than there are processors, because many tests wait for something."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest where tests run side by side, so that nobody waits for it alone at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: [folder in item.path.parents for folder in FOLDERS], reverse=True)
