"""Makes a trace of a training log: how long each gradient really took, for the laboratory to replay."""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dbw_ps import training_log
from dbw_runtime.configuration import UsageError


def round_trips(entries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, float]]:
    """Each worker with the seconds that it took for a gradient, in the order in which they were done.

    A worker begins when parameters are published, or when it is done with older ones. Where it is interrupted
    instead, only gradients that came can be seen, the fast ones.
    """
    published: dict[int, float] = {}
    free: dict[int, float] = {}
    for entry in entries:
        published[entry["iteration"]] = entry["published_seconds"]
        for arrival in entry["arrivals"]:
            worker, began = arrival["worker"], published.get(arrival["iteration"])
            if began is not None:
                done = began + arrival["seconds"]
                yield worker, done - min(max(began, free.get(worker, began)), done)
                free[worker] = done


def write_trace(log: Path, trace: Path, workers: int | None) -> int:
    """Write the trace of a training log; returns how many gradients it has.

    With a number of workers, gradients are dealt out to as many: so a log of one worker, on a machine of its own, can
    stand for a cluster of such machines.
    """
    try:
        trips = list(round_trips(training_log.read(log)))
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"{log} does not tell when gradients came: {error!r}; give what dbw ps writes today"
        ) from error
    if not trips:
        raise UsageError(f"{log} has no gradients: give the log of a training that has begun")
    steps = Counter[int]()
    with trace.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("step", "worker", "seconds"))
        for i, (number, seconds) in enumerate(trips):
            worker = number if workers is None else i % workers
            table.writerow((steps[worker], worker, f"{seconds:.6f}"))
            steps[worker] += 1
    return len(trips)
