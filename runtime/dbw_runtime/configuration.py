"""Options of a program: flags, then environment variables, then a TOML file, then defaults.

A program's options are the fields of a frozen dataclass, each made with `option`. The field `max_jobs` of the program
`controller` is the flag `--max-jobs`, the variable `DBW_CONTROLLER_MAX_JOBS` and the key `max_jobs` in the table
`[controller]` of the file.
"""

import argparse
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T", bound="Options")
KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "text", Path: "a path"}


class UsageError(Exception):
    """An option has a value that is not allowed; the text says what is expected."""


class WrongValueError(UsageError):
    """The value of one option is not allowed, wherever it came from."""

    def __init__(self, option: str, value: object, expected: str) -> None:
        super().__init__(f"{option} is {value!r}; it must be {expected}")
        self.option, self.value, self.expected = option, value, expected

    def __reduce__(self) -> tuple[type["WrongValueError"], tuple[str, object, str]]:
        """Pickle the arguments of the constructor, not the text."""
        return type(self), (self.option, self.value, self.expected)


def option(default: Any, help: str) -> Any:  # noqa: A002, ANN401 (as argparse and dataclasses have it)
    """Declare a field as an option."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Options:
    """The options that all programs have."""

    config: Path | None = option(None, "a TOML file with options, in a table named after the program")

    def require_between(self, name: str, least: float, most: float) -> None:
        """Refuse a number outside of its range."""
        if not least <= getattr(self, name) <= most:
            raise WrongValueError(name, getattr(self, name), f"between {least} and {most}")

    def described(self) -> dict[str, Any]:
        """The options that have a value, for the log."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}


def run_program(
    program: str,
    description: str,
    kind: type[T],
    arguments: Sequence[str] | None,
    run: Callable[[T], int | None],
    *failures: type[Exception],
) -> int:
    """Run `dbw PROGRAM` with its options; returns the exit code.

    Errors that are expected, `failures` and OSError, are reported in one line without a traceback.
    """
    parser = argparse.ArgumentParser(
        prog=f"dbw {program}", usage="%(prog)s [OPTIONS]", description=description, allow_abbrev=False
    )
    options, _ = parse(parser, kind, program, arguments)
    expected: tuple[type[Exception], ...] = (OSError, *failures)
    try:
        return run(options) or 0
    except WrongValueError as error:
        flag = f"--{error.option.replace('_', '-')}"
        parser.error(str(WrongValueError(flag, error.value, error.expected)))
    except UsageError as error:
        parser.error(str(error))
    except expected as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1


def parse(
    parser: argparse.ArgumentParser, kind: type[T], program: str, arguments: Sequence[str] | None
) -> tuple[T, dict[str, Any]]:
    """Read options, and whatever else the parser knows; ends the program with exit code 2 if something is wrong."""
    for item in own_first(kind):
        add_option(parser, kind, program, item)
    given = vars(parser.parse_args(arguments))
    try:
        return resolve(kind, program, given, os.environ), given
    except UsageError as error:
        parser.error(str(error))


def own_first(kind: type[Options]) -> "list[Field[Any]]":
    """The options in the order in which people look for them: a program's own, then those of all programs."""
    return sorted(fields(kind), key=lambda item: item.name not in kind.__annotations__)


def add_option(parser: argparse.ArgumentParser, kind: type[Options], program: str, item: "Field[Any]") -> None:
    """Give a parser the flag of a field. Flags that are not used do not show up in what it returns."""
    value_type, choices = _type(kind, item.name)
    default = f"default: {item.default}" if item.default not in (None, MISSING) else "no default"
    text = f"{item.metadata['help']} [{variable(program, item.name)}; {default}]".replace("%", "%%")
    flag = f"--{item.name.replace('_', '-')}"
    if value_type is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
    else:
        metavar = "{" + ",".join(choices) + "}" if choices else value_type.__name__.upper()
        parser.add_argument(flag, default=argparse.SUPPRESS, metavar=metavar, help=text)


def variable(program: str, name: str) -> str:
    """The environment variable of an option."""
    return f"DBW_{program}_{name}".upper()


def resolve(kind: type[T], program: str, flags: Mapping[str, object], environment: Mapping[str, str]) -> T:
    """Take each option from the first place that has it. A variable that is empty counts as none."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    table: dict[str, object] = {}
    for item in fields(kind):  # `config` is the first one
        name = item.name
        candidates = (
            (f"--{name.replace('_', '-')}", flags.get(name)),
            (variable(program, name), environment.get(variable(program, name)) or None),
            (f"{name} in {values.get('config')}", table.get(name)),
        )
        values[name] = item.default
        for where, raw in candidates:
            if raw is not None:
                values[name], places[name] = _value(kind, name, where, raw), where
                break
        if name == "config" and values[name] is not None:
            table = _table(values[name], program, kind)
    try:
        return kind(**values)
    except WrongValueError as error:
        raise WrongValueError(places.get(error.option, error.option), error.value, error.expected) from None


def _table(path: Path, program: str, kind: type[Options]) -> dict[str, object]:
    """The program's table in a TOML file; other programs may have theirs in the same file."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"the file {path} cannot be read: {error}") from error
    if stray := [name for name, value in content.items() if not isinstance(value, dict)]:
        raise UsageError(f"{', '.join(stray)} in {path} must be in a table, such as [{program}]")
    if content and program not in content:
        raise UsageError(f"the file {path} has {', '.join(f'[{name}]' for name in content)}, but no table [{program}]")
    table: dict[str, object] = content.get(program, {})
    known = [item.name for item in own_first(kind) if item.name != "config"]
    if unknown := sorted(set(table) - set(known)):
        raise UsageError(f"unknown option {', '.join(unknown)} in {path}; [{program}] may have {', '.join(known)}")
    return table


def _value(kind: type[Options], name: str, where: str, raw: Any) -> object:  # noqa: ANN401
    value_type, choices = _type(kind, name)
    expected = f"one of {', '.join(choices)}" if choices else KINDS[value_type]
    try:
        value = _converted(value_type, raw)
        if choices and value not in choices:
            raise ValueError
    except ValueError:
        raise WrongValueError(where, raw, expected) from None
    return value


def _converted(kind: type, raw: Any) -> object:  # noqa: ANN401
    if kind is bool:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if str(raw).lower() not in words:
            raise ValueError
        return words[str(raw).lower()]
    accepted = {int: (str, int), float: (str, int, float)}.get(kind, str)
    is_empty_path = kind is Path and not raw  # which would be the current folder
    if isinstance(raw, bool) or not isinstance(raw, accepted) or is_empty_path:
        raise ValueError
    return kind(raw)


def _type(kind: type[Options], name: str) -> tuple[type, tuple[str, ...]]:
    """The type of an option without its None, and the choices that it has."""
    hint = get_type_hints(kind)[name]
    if isinstance(hint, UnionType):
        hint = next(part for part in get_args(hint) if part is not NoneType)
    return (str, get_args(hint)) if get_origin(hint) is Literal else (hint, ())
