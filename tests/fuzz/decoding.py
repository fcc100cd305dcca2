"""Fuzzes decoders in processes of their own, each forked from this one, whose modules tell libFuzzer what they run.

`python -m tests.fuzz.decoding --output FOLDER`, as `tests.fuzz` starts it, writes what each target did to a file in the
folder, and beside it the input that it ended with if that was a finding. `--targets NAME --replay FILE` runs one again.
"""

import argparse
import os
import resource
import sys
import time
from pathlib import Path
from random import Random

import atheris

os.environ["NUMBA_DISABLE_JIT"] = "1"  # compiled code would neither say what it runs nor notice a wrong index

PACKAGES = ["dbw_controller", "dbw_ps", "dbw_runtime", "dbw_worker", "prometheus_client"]
with atheris.instrument_imports(include=PACKAGES):
    from tests.fuzz import callers, states, trainings
    from tests.fuzz.target import Target

TARGETS = states.TARGETS | trainings.TARGETS | callers.TARGETS
# What one input, of a few kilobytes, may cost. The time is that of the processor, so that others on it do not matter.
# A job of 1000 workers, the most without compiled kernels, takes half of this memory; with them a small part of it.
CPU_SECONDS, MEMORY_BYTES = 20.0, 512 * 2**20
HANGS_SECONDS = 600  # for what waits, and takes no time of the processor
ADDRESS_BYTES = 4 * 2**30  # beyond what is there before


class CostError(Exception):
    """An input costs more than it may."""


def run_within_limits(target: Target, data: bytes) -> None:
    """Run an input; CostError if it takes much time or memory."""
    begin, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    target.run(data)
    seconds = time.process_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
    if seconds > CPU_SECONDS or grown > MEMORY_BYTES:
        raise CostError(f"{len(data)} bytes took {seconds:.1f} s and {grown / 2**20:.0f} MiB")


def fuzz(name: str, folder: Path, limit: str, seed: int) -> None:
    """Fuzz one target in this process, which ends with it."""
    target, corpus = TARGETS[name], folder / "corpora" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    _limit_memory()

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        changed = target.mutate(data, Random(seed), lambda part: atheris.Mutate(part, max(2 * len(part), 64)))
        return changed if len(changed) <= max_size else data

    arguments = [f"-seed={seed}", limit, f"-max_len={target.max_bytes}", f"-timeout={HANGS_SECONDS}"]
    outputs = [f"-artifact_prefix={folder}/{name.replace(' ', '-')}-", "-rss_limit_mb=0", str(corpus)]
    run = atheris.instrument_func(lambda data: run_within_limits(target, data))
    atheris.Setup([name, *arguments, *outputs], run, custom_mutator=mutate)
    atheris.Fuzz()


def _limit_memory() -> None:
    """Let what asks for far too much memory fail, rather than others on this machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESS_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def log_of(name: str) -> str:
    """The file of what a target did."""
    return f"{name.replace(' ', '-')}.log"


def in_fork(name: str, folder: Path, limit: str, seed: int) -> int:
    """Fuzz one target in a process of its own; returns its exit code."""
    output = os.open(folder / log_of(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    if (process := os.fork()) == 0:
        os.dup2(output, 1)
        os.dup2(output, 2)
        fuzz(name, folder, limit, seed)  # which ends the process; libFuzzer then writes the input, if it is a finding
    os.close(output)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> int:
    """Fuzz; returns 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.decoding", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("fuzz"), help="the folder for logs and findings")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="for all targets together; otherwise a short run of each")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--replay", type=Path, help="an input to run instead")
    options = parser.parse_args()
    if options.replay is not None:
        run_within_limits(TARGETS[options.targets[0]], options.replay.read_bytes())
        return 0
    options.output.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.targets:
        each = None if options.seconds is None else round(options.seconds / len(options.targets))
        limit = f"-runs={TARGETS[name].short_runs}" if each is None else f"-max_total_time={max(each, 1)}"
        begin = time.perf_counter()
        code = in_fork(name, options.output, limit, options.seed)
        print(f"{name}: {'FINDING' if code else 'clean'} after {time.perf_counter() - begin:.1f} s", flush=True)
        if code:
            failed += 1
            text = (options.output / log_of(name)).read_text(errors="replace")
            print(text[text.find("===") :][:4000], flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
