"""Programs that have subcommands. Each is imported when it is used: not every machine has what all of them need."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple


class Command(NamedTuple):
    """A subcommand."""

    place: str  # module:function, which takes the rest of the arguments and returns the exit code
    summary: str
    extra: str = ""  # the extra of our package that installs what the command imports
    arguments: str = ""  # what it needs, for the usage


def usage(program: str, description: str, commands: Mapping[str, Command]) -> str:
    """What `PROGRAM --help` shows."""
    forms = {f"{name} {command.arguments}".strip(): command.summary for name, command in commands.items()}
    width = max(map(len, forms)) + 2
    lines = [f"  {form:<{width}}{summary}" for form, summary in forms.items()]
    explained = f"{program} COMMAND --help explains a command."
    return "\n".join([f"usage: {program} COMMAND …", "", description, "", *lines, "", explained])


def dispatch(program: str, description: str, commands: Mapping[str, Command], arguments: Sequence[str]) -> int:
    """Run the subcommand that the first argument names; returns the exit code."""
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage(program, description, commands))
        return 0
    if name not in commands:
        print(f"{program}: there is no command {name!r}\n\n{usage(program, description, commands)}", file=sys.stderr)
        return 2
    module, function = commands[name].place.split(":")
    try:
        return int(getattr(import_module(module), function)(rest))
    except ModuleNotFoundError as error:
        if not commands[name].extra:
            raise
        advice = f"pip install 'dbw[{commands[name].extra}]'"
        print(f"{program} {name} needs the package {error.name}: {advice}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
