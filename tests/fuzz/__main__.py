"""`python -m tests.fuzz --minutes M`: give decoders and rpcs what a broken or hostile peer might send.

Half of the time decoders are fuzzed, guided by which of their lines run, and in the other half both servers. The exit
code is 1 if anything happens that is not documented: what led to it is printed, and inputs of decoders are kept.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.rpcs import fuzz_controller, fuzz_parameter_server
from tests.kernels import compile_all

ROUND_SECONDS = 30.0  # after which a server ends, and its log is looked at
SHORT_CALLS = 100  # of each client of a server


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz; returns 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to fuzz")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of all that is random")
    options = parser.parse_args(arguments)
    compile_all()
    seconds = 60 * options.minutes
    print(f"fuzzing for {options.minutes:g} minutes, seed {options.seed}", flush=True)
    findings = [*fuzz_decoders(options.seed, seconds / 2), *fuzz_servers(options.seed, seconds / 2)]
    print(*findings, f"{len(findings)} findings", sep="\n")
    return int(bool(findings))


def fuzz_decoders(seed: int, seconds: float | None = None) -> list[str]:
    """Fuzz all decoders, for a short time if none is given; returns what was wrong."""
    if find_spec("atheris") is None:
        print("SKIPPED: atheris is not installed here, so DECODERS ARE NOT FUZZED", file=sys.stderr)
        return []
    folder = Path(tempfile.mkdtemp(prefix="dbw-fuzz-"))
    limit = () if seconds is None else ("--seconds", str(seconds))
    command = [sys.executable, "-m", "tests.fuzz.decoding", "--output", str(folder), "--seed", str(seed), *limit]
    with (folder / "stderr").open("w") as stderr:
        scratch = {**os.environ, "TMPDIR": str(folder)}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False, env=scratch)
    print(done.stdout, end="", flush=True)
    if done.returncode:
        return [
            f"a decoder failed, or the fuzzer; see {folder}:\n{done.stdout}{(folder / 'stderr').read_text()[-2000:]}"
        ]
    shutil.rmtree(folder)
    return []


def fuzz_servers(seed: int, seconds: float) -> list[str]:
    """Fuzz both servers in turn, each for some seconds at a time; returns what was wrong."""
    findings: list[str] = []
    end = time.monotonic() + seconds
    while not findings and time.monotonic() < end:
        for fuzz in (_fuzz_new_controller, fuzz_parameter_server):
            findings += fuzz(seed, until(time.monotonic() + min(ROUND_SECONDS, seconds / 2)))
        seed += 1
    return findings


def _fuzz_new_controller(seed: int, is_over: Callable[[int], bool]) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="dbw-fuzz-") as folder:
        return fuzz_controller(seed, is_over, Path(folder))


def until(end: float) -> Callable[[int], bool]:
    """Whether it is later than this, on the monotonic clock."""
    return lambda _: time.monotonic() > end


if __name__ == "__main__":
    sys.exit(main())
