"""Goes through runs on all processors."""

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dbw_experiments.laboratory.learning import try_out
from dbw_experiments.laboratory.results import Results
from dbw_experiments.laboratory.runs import Record, Run
from dbw_experiments.laboratory.training import Place, execute
from dbw_runtime.memory import keep_large_buffers
from dbw_worker.devices import find_device

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("runs"),
    TimeElapsedColumn(),
    TextColumn("left:"),
    TimeRemainingColumn(),
)


def bundles(runs: Sequence[Run]) -> list[list[Run]]:
    """Put runs together that learn the same, and differ in when that happens: gradients are computed once for all."""
    found: dict[Run, list[Run]] = {}
    for run in runs:
        alike = msgspec.structs.replace(run, case="", delay="", rule="", sync_mode="push-wait")
        found.setdefault(alike if run.ignores_time else run, []).append(run)
    return sorted(found.values(), key=lambda bundle: bundle[0].seed)  # interrupted, there is something of everything


def progress_bar(console: Console, clock: Callable[[], float] = time.monotonic) -> Progress:
    """How much is done, and how long the rest will take: by all that is done, though minutes may lie between two."""
    return Progress(*COLUMNS, console=console, get_time=clock, speed_estimate_period=math.inf)


class Crew:
    """Processes that compute runs. They begin afresh, because a fork of a process with threads may hang."""

    def __init__(self, jobs: int, console: Console) -> None:
        self._pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _obey)
        self._console = console

    def prepare(self, runs: Sequence[Run], device: str) -> None:
        """Find out whether runs can be computed, one of each kind, and get their data."""
        unlike = {
            (run.model, run.dataset, run.batch, run.workers, run.split, run.label_noise, run.optimizer): run
            for run in runs
        }
        with _sheltered():
            prepared = [self._pool.submit(try_out, run, find_device(device)) for run in unlike.values()]
        for done in prepared:
            done.result()

    def go_through(self, name: str, runs: Sequence[Run], results: Results, place: Place) -> None:
        """Compute what is missing of results; interrupted, it goes on with the rest next time."""
        missing = results.missing(runs)
        with progress_bar(self._console) as progress:
            task = progress.add_task(name, total=len(runs), completed=len(runs) - len(missing))
            with _sheltered():
                pending = {self._pool.submit(execute, bundle, place): bundle for bundle in bundles(missing)}
            while pending:
                for done in wait(pending, return_when=FIRST_COMPLETED).done:
                    bundle = pending.pop(done)
                    results.add(map(Record, bundle, done.result()))
                    progress.advance(task, len(bundle))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=kind is None, cancel_futures=True)
        for process in processes if kind is not None else ():
            process.terminate()  # what it computes takes minutes, and nobody waits for it any more


@contextmanager
def _sheltered() -> Iterator[None]:
    """Ctrl-C does not reach processes that begin meanwhile: it is for the one who began them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _obey() -> None:
    """End when told so, or when there is nobody left to compute for; a run would go on for minutes."""
    keep_large_buffers()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
