"""The Python client converses as the scripts say."""

from pathlib import Path

import pytest

from tests.conversations.script import SCRIPTS, play


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_client_does_as_the_script_says(path: Path) -> None:
    text = path.read_text()
    assert play(text) == text
