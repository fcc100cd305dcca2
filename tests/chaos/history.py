"""What happened: faults, recoveries and violations, as a table and as a file with one line each."""

import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class Event(NamedTuple):
    """A fault that has ended. `pause` says for how long the trainings that it touched may stand still meanwhile."""

    label: str
    trainings: tuple[str, ...]
    began: float
    ended: float
    pause: float
    stops_decisions: bool
    fills_disk: bool


class History:
    """Collects it all."""

    def __init__(self, path: Path) -> None:
        self._file, self._began = path.open("w", buffering=1), time.monotonic()
        self.violations: list[str] = []
        self.faults: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}  # faults that could not be tried, and why
        self.counts: Counter[str] = Counter()  # of anything else
        self._recoveries: defaultdict[str, list[float]] = defaultdict(list)  # seconds

    def close(self) -> None:
        """Write no more lines."""
        self._file.close()

    def note(self, text: str) -> None:
        """Write a line."""
        self._file.write(f"{time.monotonic() - self._began:8.2f} {text}\n")

    def violated(self, text: str) -> None:
        """Something happened that must not."""
        self.violations.append(f"at {time.monotonic() - self._began:.1f} s: {text}")
        self.note(f"VIOLATION: {text}")

    def recovered(self, label: str, seconds: float) -> None:
        """After a fault of this kind a training went on in this time."""
        self._recoveries[label].append(seconds)

    def print(self, console: Console) -> None:
        """Show it."""
        table = Table("fault", "times", "recovery, median", "longest", title="Chaos")
        for column in table.columns[1:]:
            column.justify = "right"
        for label, times in sorted(self.faults.items()):
            seconds = self._recoveries.get(label)
            shown = ("", "") if not seconds else (f"{median(seconds):.1f} s", f"{max(seconds):.1f} s")
            table.add_row(label, str(times), *shown)
        for label, why in sorted(self.skipped.items()):
            table.add_row(label, "NOT TESTED", "", "", style="bold red")
            console.print(f"NOT TESTED: {label}: {why}", style="bold red")
        console.print(table)
        for what, count in self.counts.items():
            console.print(f"{what}: {count}")
        console.print(f"violations: {len(self.violations)}", style="bold red" if self.violations else "green")
        for text in self.violations:
            console.print(f"  {text}", markup=False)
