"""The `dbw` command. Each subcommand is imported when it is used: not every machine has what all of them need."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple


class Command(NamedTuple):
    """Where a subcommand is, what it does, and the extra that has its dependencies."""

    place: str
    summary: str
    extra: str


COMMANDS = {
    "controller": Command("dbw_controller.server.app:main", "serve a controller", "controller"),
    "ps": Command("dbw_ps.app:main", "serve a parameter server", "ps"),
    "worker": Command("dbw_worker.app:main", "compute gradients for a parameter server", "worker"),
    "data": Command("dbw_worker.data_command:main", "get data sets", "worker"),
    "demo": Command("dbw_experiments.demo.app:main", "train with stragglers here, and compare policies", "experiments"),
    "experiment": Command("dbw_experiments.laboratory.app:main", "compare policies on a virtual clock", "experiments"),
    "jobs": Command("dbw_controller.cli.jobs:jobs", "list the jobs of a running controller", "controller"),
    "watch": Command("dbw_controller.cli.watch:main", "show a job's decisions as they are made", "controller"),
    "why": Command("dbw_controller.cli.why:main", "explain one decision of a job", "controller"),
    "doctor": Command("dbw_controller.cli.doctor:main", "say what a parameter server reports wrong", "controller"),
    "delete": Command("dbw_controller.cli.jobs:delete", "delete a job and all that it has learnt", "controller"),
    "conformance": Command(
        "dbw_controller.cli.conformance:main", "check a controller against the contract", "controller"
    ),
    "health": Command("dbw_runtime.health_command:main", "ask a server whether it is ready", "controller"),
}
USAGE = "\n".join(
    [
        "usage: dbw COMMAND …",
        "",
        "Dynamic backup workers: tells a parameter server how many gradients to wait for.",
        "",
        *(f"  {name:<12}{command.summary}" for name, command in COMMANDS.items()),
        "",
        "dbw COMMAND --help explains a command.",
    ]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit code."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if name not in COMMANDS:
        print(f"dbw: there is no command {name!r}\n\n{USAGE}", file=sys.stderr)
        return 2
    module, function = COMMANDS[name].place.split(":")
    try:
        run = getattr(import_module(module), function)
        return int(run(rest))
    except ModuleNotFoundError as error:
        extra = COMMANDS[name].extra
        print(f"dbw {name} needs the package {error.name}: pip install 'dbw[{extra}]'", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
