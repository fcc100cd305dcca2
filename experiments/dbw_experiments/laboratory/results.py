"""What came of runs, as lines of JSON: each is appended as soon as it is known, so that nothing is computed twice."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from dbw_experiments.laboratory.runs import Outcome, Record, Run
from dbw_runtime.durable import atomic_write, flush


class Results:
    """The file of a scenario's results."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[Run, Outcome] = {}
        *lines, rest = path.read_bytes().split(b"\n") if path.exists() else [b""]
        self._has_stray_end = bool(rest)
        for line in lines:
            try:
                record = msgspec.json.decode(line, type=Record)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue  # of another version, or torn: it is computed again
            self._outcomes[record.run] = record.outcome

    def of(self, runs: Iterable[Run]) -> list[Record]:
        """What is known of these runs."""
        return [Record(run, self._outcomes[run]) for run in runs if run in self._outcomes]

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """The runs that nothing is known of."""
        return [run for run in runs if run not in self._outcomes]

    def add(self, records: Iterable[Record]) -> None:
        """Keep what came of runs."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            if self._has_stray_end:  # a line that somebody was killed in
                file.write(b"\n")
                self._has_stray_end = False
            for record in records:
                file.write(msgspec.json.encode(record) + b"\n")
                self._outcomes[record.run] = record.outcome
            flush(file)

    def tidy(self, runs: Iterable[Run]) -> None:
        """Put these runs first, in their order, and others after them: the file is the same however it came about."""
        order = dict.fromkeys([*runs, *self._outcomes])
        with atomic_write(self._path) as file:
            file.writelines(msgspec.json.encode(record) + b"\n" for record in self.of(order))
