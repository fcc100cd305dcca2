import os

import pytest

REASON = "`make test-containers` builds the images and runs them: IMAGES AND COMPOSE ARE NOT TESTED HERE"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("DBW_TEST_CONTAINERS") != "1":
        for item in items:
            if "tests/containers/" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=REASON))
