"""What `tests/unit/ps/test_model.py` does not claim of plug-ins already."""

from pathlib import Path

import pytest

from dbw_runtime.configuration import WrongValueError
from dbw_runtime.plugins import Plugin

CODE = """
from dataclasses import dataclass

@dataclass
class Cup:
    litres: float = 0.25

def large():
    return Cup(0.5)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cups.py"
    path.write_text(CODE)
    return path


def test_options_that_name_the_same_file_get_the_same_code(file: Path) -> None:
    cup, large = Plugin("cup", f"{file}:Cup", "a cup").function(), Plugin("other", f"{file}:large", "a cup").function()
    assert isinstance(large(), cup)  # type: ignore[arg-type]


def test_a_short_name_stands_for_a_place(file: Path) -> None:
    assert str(Plugin("cup", "big", "a cup", {"big": f"{file}:large"}).build(object)) == "Cup(litres=0.5)"


def test_what_is_wrong_is_told_by_the_option_and_as_it_was_given(file: Path) -> None:
    names = {"big": f"{file}:huge", "small": f"{file}:Cup"}
    with pytest.raises(
        WrongValueError, match=r"one of big, small, or package.module:function .*, a cup; .* has no huge"
    ) as caught:
        Plugin("cup", "big", "a cup", names).build(object)
    assert (caught.value.option, caught.value.value) == ("cup", "big")
    with pytest.raises(WrongValueError, match=r"Cup\(\) returned something of type Cup"):
        Plugin("cup", "small", "a cup", names).build(int)
