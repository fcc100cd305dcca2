"""`python -m tests.chaos --minutes M`: train through faults of all kinds with real programs, and see what they cost.

Bursts of faults alternate with quiet times, in which every training must go on. Prints a table of faults and recovery
times; the exit code is 1 if anything happened that must not, and then all logs are kept. Faults of disks need root.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from tests.chaos.disk import Guard
from tests.chaos.nemesis import Fault
from tests.chaos.run import Run
from tests.kernels import compile_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Cause chaos; returns 1 if something was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to cause faults")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the choice of faults")
    names = [fault.value for fault in Fault]
    parser.add_argument("--faults", nargs="+", choices=names, default=names, help="which kinds; by default all")
    parser.add_argument("--keep", action="store_true", help="keep the logs in any case")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # more of them would wait for each other while all processors are busy
    compile_all()
    return cause(options.minutes, options.seed, [Fault(name) for name in options.faults], options.keep)


def cause(minutes: float, seed: int, faults: Sequence[Fault], keep: bool = False) -> int:
    """Cause chaos; returns 1 if something was violated."""
    console = Console(stderr=False, width=None if sys.stdout.isatty() else 120)
    console.print(f"chaos of {minutes:g} minutes, seed {seed}")
    folder = Path(tempfile.mkdtemp(prefix="dbw-chaos-"))
    guard = Guard(folder)
    try:
        run = Run(folder, 60 * minutes, random.Random(seed), faults)
        asyncio.run(run.whole())
        history = run.history
    finally:
        is_clean = guard.close()
    if not is_clean:
        history.violated(f"processes or disks of {folder} are left")
    history.close()
    history.print(console)
    if history.violations or keep or not is_clean:
        console.print(f"logs: {folder}", soft_wrap=True)
    else:
        shutil.rmtree(folder)
    return int(bool(history.violations))


if __name__ == "__main__":
    sys.exit(main())
