import pickle
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from dbw_runtime.configuration import Options, UsageError, WrongValueError, option, parse, resolve, variable


@dataclass(frozen=True)
class Kitchen(Options):
    """Options of every type."""

    cups: int = option(3, "how many cups there are, 100% of them")
    litres: float = option(0.5, "how much a cup holds")
    tea: str = option("green", "what is in them")
    hot: bool = option(True, "whether it is hot")
    shelf: Path | None = option(None, "where they are")
    size: Literal["small", "large"] = option("small", "how large they are")

    def __post_init__(self) -> None:
        if self.cups < 1:
            raise WrongValueError("cups", self.cups, "at least 1")


def told(flags: dict[str, object] | None = None, /, **environment: str) -> Kitchen:
    return resolve(Kitchen, "kitchen", flags or {}, environment)


def write(folder: Path, content: str) -> str:
    path = folder / "dbw.toml"
    path.write_text(content, "utf-8")
    return str(path)


def test_without_anything_there_are_defaults() -> None:
    assert told() == Kitchen()


def test_a_flag_comes_before_a_variable_before_the_file(tmp_path: Path) -> None:
    config = write(tmp_path, '[kitchen]\ncups = 1\nlitres = 1\ntea = "grün"\n[office]\ndesks = 7\n')
    kitchen = told({"cups": "100"}, DBW_KITCHEN_CONFIG=config, DBW_KITCHEN_CUPS="10", DBW_KITCHEN_LITRES="10")
    assert kitchen == Kitchen(config=Path(config), cups=100, litres=10.0, tea="grün")


def test_the_file_named_by_a_flag_comes_before_the_one_named_by_a_variable(tmp_path: Path) -> None:
    assert told({"config": write(tmp_path, "[kitchen]\ncups = 7\n")}, DBW_KITCHEN_CONFIG="/nowhere").cups == 7


def test_a_variable_is_named_after_program_and_option() -> None:
    assert variable("controller", "max_jobs") == "DBW_CONTROLLER_MAX_JOBS"


def test_an_empty_variable_counts_as_none() -> None:
    assert told(DBW_KITCHEN_SHELF="", DBW_KITCHEN_CUPS="", DBW_KITCHEN_CONFIG="") == Kitchen()


@pytest.mark.parametrize(
    ("word", "meant"), [("true", True), ("TRUE", True), ("1", True), ("yes", True), ("false", False), ("0", False)]
)
def test_switches_know_several_words(word: str, meant: bool) -> None:
    assert told(DBW_KITCHEN_HOT=word).hot is meant


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("cups", "three", "an integer"),
        ("cups", "1.0", "an integer"),
        ("cups", "0", "at least 1"),
        ("litres", "much", "a number"),
        ("hot", "maybe", "true or false"),
        ("size", "huge", "one of small, large"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place_and_what_is_expected(name: str, raw: str, expected: str) -> None:
    shown = "0" if raw == "0" else f"'{raw}'"
    with pytest.raises(UsageError, match=rf"^--{name} is {shown}; it must be {expected}$"):
        told({name: raw})
    with pytest.raises(UsageError, match=rf"^DBW_KITCHEN_{name.upper()} is {shown}; it must be {expected}$"):
        told(**{variable("kitchen", name): raw})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("cups = 1.0", r"^cups in \S+dbw\.toml is 1\.0; it must be an integer$"),
        ("cups = true", r"^cups in \S+ is True; it must be an integer$"),
        ("cups = 0", r"^cups in \S+ is 0; it must be at least 1$"),
        ("litres = [1]", r"^litres in \S+ is \[1\]; it must be a number$"),
        ("tea = 1", r"^tea in \S+ is 1; it must be text$"),
        ("shelf = 1", r"^shelf in \S+ is 1; it must be a path$"),
        ('shelf = ""', r"^shelf in \S+ is ''; it must be a path$"),
        ("mugs = 1", r"^unknown option mugs in \S+; \[kitchen\] may have cups, litres, tea, hot, shelf, size$"),
        ('config = "another"', r"^unknown option config in \S+;"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        told({"config": write(tmp_path, f"[kitchen]\n{line}\n")})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("cups = 1", r"^cups in \S+ must be in a table, such as \[kitchen\]$"),
        ("kitchen = 1", r"^kitchen in \S+ must be in a table, such as \[kitchen\]$"),
        ("[[kitchen]]\ncups = 1", r"^kitchen in \S+ must be in a table, such as \[kitchen\]$"),
        ("[kitchen", r"^the file \S+ cannot be read: "),
        ("[kitchn]\ncups = 1", r"^the file \S+ has \[kitchn\], but no table \[kitchen\]"),
    ],
)
def test_a_file_has_a_table_for_each_program(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        told({"config": write(tmp_path, content)})


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dbw.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"^the file \S+ cannot be read: "):
        told({"config": str(tmp_path / "dbw.toml")})


def test_a_file_that_is_not_there_or_is_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match=rf"^the file {path} cannot be read: "):
            told({"config": str(path)})


def parsed(*arguments: str) -> tuple[Kitchen, dict[str, Any]]:
    parser = ArgumentParser()
    parser.add_argument("guest")
    return parse(parser, Kitchen, "kitchen", arguments)


def test_flags_are_parsed_beside_what_else_a_program_is_told() -> None:
    kitchen, given = parsed("ada", "--cups", "5", "--no-hot", "--shelf", "/top")
    assert kitchen == Kitchen(cups=5, hot=False, shelf=Path("/top"))
    assert given["guest"] == "ada"


def test_a_wrong_flag_ends_the_program_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parsed("ada", "--cups", "three")
    assert "error: --cups is 'three'; it must be an integer" in capsys.readouterr().err


def test_help_names_variable_default_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parsed("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "--cups INT how many cups there are, 100% of them [DBW_KITCHEN_CUPS; default: 3]" in text
    assert "--size {small,large} how large they are [DBW_KITCHEN_SIZE; default: small]" in text
    assert "--shelf PATH where they are [DBW_KITCHEN_SHELF; no default]" in text
    assert "--hot, --no-hot" in text


def test_the_log_gets_every_option_that_has_a_value() -> None:
    described = Kitchen(shelf=Path("/top")).described()
    assert described == {"cups": 3, "litres": 0.5, "tea": "green", "hot": True, "shelf": "/top", "size": "small"}


def test_a_wrong_value_is_told_by_another_process_as_it_is() -> None:
    error = pickle.loads(pickle.dumps(WrongValueError("cups", 0, "at least 1")))  # noqa: S301 - our own
    assert isinstance(error, WrongValueError)
    assert (str(error), error.option) == ("cups is 0; it must be at least 1", "cups")
