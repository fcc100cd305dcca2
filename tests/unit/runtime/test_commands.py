import sys
from collections.abc import Sequence
from importlib import import_module

import pytest

from dbw_runtime import cli, compiled_kernels
from dbw_runtime.commands import Command, dispatch

COMMANDS = {
    "boil": Command(f"{__name__}:boil", "make it hot", arguments="LITRES"),
    "pour": Command("no_such_package.pour:main", "fill cups", extra="cups"),
    "drink": Command(f"{__name__}:drink", "empty them"),
    "wash": Command("no_such_package.wash:main", "clean them"),
}
USAGE = """usage: tea COMMAND …

All about tea.

  boil LITRES  make it hot
  pour         fill cups
  drink        empty them
  wash         clean them

tea COMMAND --help explains a command.
"""


def boil(arguments: Sequence[str]) -> int:
    print("boiling", *arguments)
    return len(arguments)


def drink(_: Sequence[str]) -> int:
    raise KeyboardInterrupt


def run(*arguments: str) -> int:
    return dispatch("tea", "All about tea.", COMMANDS, arguments)


def test_a_command_gets_the_rest_of_the_arguments_and_gives_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("boil", "--hot", "3") == 2
    assert capsys.readouterr() == ("boiling --hot 3\n", "")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_the_commands(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 0
    assert capsys.readouterr() == (USAGE, "")


def test_an_unknown_command_is_exit_code_2_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("spill", "--help") == 2
    assert capsys.readouterr() == ("", f"tea: there is no command 'spill'\n\n{USAGE}")


def test_a_command_whose_packages_are_missing_says_which_extra_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pour") == 1
    assert capsys.readouterr() == ("", "tea pour needs the package no_such_package: pip install 'dbw[cups]'\n")


def test_without_an_extra_whoever_called_says_what_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        run("wash")


def test_an_interrupted_command_is_exit_code_130() -> None:
    assert run("drink") == 130


@pytest.mark.parametrize("table", ["dbw_runtime.cli", "dbw_worker.data_command", "dbw_experiments.laboratory.app"])
def test_every_command_of_dbw_is_where_its_table_says(table: str) -> None:
    for command in import_module(table).COMMANDS.values():
        module, function = command.place.split(":")
        assert callable(getattr(import_module(module), function))


@pytest.mark.parametrize(
    ("name", "uses"), [("controller", True), ("experiment", True), ("jobs", False), ("--help", False)]
)
def test_kernels_are_prepared_before_commands_that_use_them(
    name: str, uses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(compiled_kernels, "prepare", lambda _: done.append("prepared"))
    monkeypatch.setattr(cli, "dispatch", lambda *_: done.append("dispatched"))
    monkeypatch.setattr(sys, "argv", ["dbw", name])
    cli.main()
    assert done == (["prepared"] if uses else []) + ["dispatched"]
