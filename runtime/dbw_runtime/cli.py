"""The `dbw` command."""

import os
import sys
from collections.abc import Sequence

from dbw_runtime import compiled_kernels
from dbw_runtime.commands import Command, dispatch

DESCRIPTION = "Dynamic backup workers: tells a parameter server how many gradients to wait for."
COMMANDS = {
    "controller": Command("dbw_controller.server.app:main", "serve a controller", "controller"),
    "ps": Command("dbw_ps.app:main", "serve a parameter server", "ps"),
    "worker": Command("dbw_worker.app:main", "compute gradients for a parameter server", "worker"),
    "data": Command("dbw_worker.data_command:main", "get data sets", "worker"),
    "demo": Command("dbw_experiments.demo.app:main", "train with stragglers here, and compare policies", "experiments"),
    "experiment": Command("dbw_experiments.laboratory.app:main", "compare policies on a virtual clock", "experiments"),
    "jobs": Command("dbw_controller.cli.commands:jobs", "list the jobs of a running controller", "controller"),
    "watch": Command("dbw_controller.cli.commands:watch", "show a job's decisions as they are made", "controller"),
    "why": Command("dbw_controller.cli.commands:why", "explain one decision of a job", "controller"),
    "doctor": Command("dbw_controller.cli.doctor:main", "say what a parameter server reports wrong", "controller"),
    "delete": Command("dbw_controller.cli.commands:delete", "delete a job and all that it has learnt", "controller"),
    "conformance": Command(
        "dbw_controller.cli.conformance:main", "check a controller against the contract", "controller"
    ),
    "health": Command("dbw_runtime.health_command:main", "ask a server whether it is ready", "controller"),
}
WITH_KERNELS = ("controller", "ps", "demo", "experiment")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in WITH_KERNELS:
        compiled_kernels.prepare(os.environ)
    return dispatch("dbw", DESCRIPTION, COMMANDS, given)


if __name__ == "__main__":
    sys.exit(main())
