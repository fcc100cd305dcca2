"""`python -m tests.history SECONDS`: let clients and a nemesis work on a controller, and check what they were answered.

Times cannot be replayed, but a seed chooses the same kinds of operations and faults.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.history.run import check_run, run, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("history.jsonl"), help="where to write what is violated")
    options = parser.parse_args(arguments)
    logging.getLogger("dbw.client").setLevel(logging.CRITICAL)
    history = run(options.seed, seconds=options.seconds)
    violations = check_run(history)
    for violation in violations:
        print(f"VIOLATION {violation}\n", file=sys.stderr)
    if violations:
        history.write(options.output)
        print(f"All operations are in {options.output}.", file=sys.stderr)
    print(table(history, violations))
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
