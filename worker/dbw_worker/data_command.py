"""`dbw data get` and `dbw data list`: the data sets that workers of this machine train with."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dbw_runtime.commands import Command, dispatch
from dbw_runtime.configuration import Options, option, parse
from dbw_worker.datasets import NAMES, SPECS, DataError, MissingDataError, check, default_folder, file_of, read
from dbw_worker.sources import get

DESCRIPTION = f"Data sets that workers train with: {', '.join(NAMES)}."
COMMANDS = {
    "get": Command(f"{__name__}:get_sets", "put data sets into the folder, unless they are there", arguments="NAME…"),
    "list": Command(f"{__name__}:list_sets", "show what there is, and what the folder has"),
}


@dataclass(frozen=True)
class DataOptions(Options):
    """Where the data sets are."""

    dir: Path | None = option(None, "the folder of data sets; otherwise $XDG_CACHE_HOME/dbw or ~/.cache/dbw")


def main(arguments: Sequence[str]) -> int:
    """Run `dbw data`; returns the exit code."""
    return dispatch("dbw data", DESCRIPTION, COMMANDS, arguments)


def get_sets(arguments: Sequence[str]) -> int:
    """Run `dbw data get`; returns the exit code."""
    description = "Put data sets into the folder. Those that are there are verified, and got again if they are damaged."
    parser = ArgumentParser(prog="dbw data get", description=description, allow_abbrev=False)
    parser.add_argument("names", metavar="NAME", nargs="+", choices=NAMES, help=", ".join(NAMES))
    options, given = parse(parser, DataOptions, "data", arguments)
    folder = (options.dir or default_folder()).absolute()
    return max([_get_one(name, folder) for name in given["names"]])


def _get_one(name: str, folder: Path) -> int:
    try:
        if _is_there(name, folder):
            print(f"{name} is there and complete: {_described(file_of(name, folder))}")
        else:
            print(f"{name} is there now: {_described(get(name, folder, _tell))}")
    except (DataError, OSError) as error:
        print(f"dbw data: {error}", file=sys.stderr)
        return 1
    return 0


def _is_there(name: str, folder: Path) -> bool:
    """Whether the folder has a data set, the right one to the last byte."""
    try:
        check(name, read(name, folder))
    except MissingDataError:
        return False
    except DataError as error:
        _tell(f"{name}: what is there is wrong: {error}")
        return False
    return True


def list_sets(arguments: Sequence[str]) -> int:
    """Run `dbw data list`; returns the exit code."""
    parser = ArgumentParser(prog="dbw data list", description="Show what data sets there are.", allow_abbrev=False)
    options, _ = parse(parser, DataOptions, "data", arguments)
    folder = (options.dir or default_folder()).absolute()
    print(f"{'name':<15}{'to train':>8}{'held out':>10}  file")
    for name, spec in SPECS.items():
        path = file_of(name, folder)
        where = _described(path) if path.is_file() else f"– (dbw data get {name})"
        print(f"{name:<15}{spec.train:>8}{spec.held_out:>10}  {where}")
    return 0


def _described(path: Path) -> str:
    return f"{path} ({path.stat().st_size / 1e6:.1f} MB)"


def _tell(line: str) -> None:
    """Say what goes on, beside the result."""
    print(line, file=sys.stderr, flush=True)
