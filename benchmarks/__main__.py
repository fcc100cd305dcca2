"""Run every benchmark, one after the other, and show all bars in one table."""

import argparse
import json
import pkgutil
import subprocess
import sys

import benchmarks
from benchmarks._harness import Bar, bar_table


def split_output(output: str) -> tuple[str, list[Bar] | None]:
    """Split what a benchmark printed with --json into its readable part and its bars, None if it has no report."""
    readable, _, last = output.rstrip("\n").rpartition("\n")
    try:
        bars = [Bar(bar["name"], bar["value"], bar["op"], bar["bar"]) for bar in json.loads(last)["bars"]]
    except (ValueError, KeyError, TypeError):
        return output, None
    return readable, bars


def main() -> None:
    """Run the benchmarks in processes of their own; exit with 1 if one of them fails to run."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_")]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones (default: all): {', '.join(names)}")
    chosen = parser.parse_args().names or names
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"no such benchmark: {', '.join(unknown)} (there are: {', '.join(names)})")

    table: list[tuple[str, Bar]] = []
    failed = []
    for name in chosen:
        print(f"── {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--json"], stdout=subprocess.PIPE, text=True)
        readable, bars = split_output(done.stdout)
        print(readable, end="\n\n", flush=True)
        if done.returncode or bars is None:
            failed.append(name)
        else:
            table += [(name, bar) for bar in bars]
    if table:
        print(bar_table(table))
    if failed:
        sys.exit(f"failed to run: {', '.join(failed)}")


if __name__ == "__main__":
    main()
