"""`python -m tests.simulation SEEDS`: simulate seeds, print what happened in the first that fails, and count the rest.

SEEDS is a number (that many, from 0 on), a range FIRST:LAST (without the last), or one seed as =SEED, which is replayed
with all that happened in it.
"""

import argparse
import multiprocessing
import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial

from tests.kernels import compile_all
from tests.simulation.run import Result, run_seed


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate; returns 1 if a seed has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", nargs="?", default="1000", metavar="SEEDS")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many to use")
    options = parser.parse_args(arguments)
    if options.seeds.startswith("="):
        result = run_seed(int(options.seeds[1:]))
        print(result)
        return int(result.violation is not None)
    first, _, last = options.seeds.rpartition(":")
    return simulate(range(int(first or 0), int(last)), options.processes)


def simulate(seeds: range, processes: int) -> int:
    """Simulate many seeds; returns 1 if one has failed."""
    compile_all()
    failed: list[Result] = []
    steps = 0
    quiet = partial(warnings.simplefilter, "ignore", RuntimeWarning)  # about coroutines of killed processes
    with multiprocessing.get_context("forkserver").Pool(processes, quiet) as pool:
        for count, result in enumerate(pool.imap(run_seed, seeds, chunksize=10), 1):
            steps += result.steps
            if result.violation is not None:
                print(f"seed {result.seed} FAILED: {result.violation}", file=sys.stderr, flush=True)
                failed.append(result)
            if count % 1000 == 0:
                print(f"{count} seeds, {len(failed)} failed", flush=True)
    if failed:
        print(f"\n{failed[0]}\n\nTo replay it: make simulate SEEDS=={failed[0].seed}", file=sys.stderr)
    print(f"{len(seeds)} seeds, {steps} steps, {len(failed)} violations")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
