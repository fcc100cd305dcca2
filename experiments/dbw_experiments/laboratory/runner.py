"""Goes through the runs of a scenario, on all processors."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dbw_experiments.laboratory.results import Results
from dbw_experiments.laboratory.runs import Outcome, Record, Run
from dbw_experiments.laboratory.training import Place, execute


def bundles(runs: Sequence[Run]) -> list[list[Run]]:
    """Put runs together that learn the same, and differ in when that happens: gradients are computed once for all."""
    found: dict[Run, list[Run]] = {}
    for run in runs:
        key = msgspec.structs.replace(run, case="", delay="", rule="") if run.ignores_time else run
        found.setdefault(key, []).append(run)
    return sorted(found.values(), key=lambda bundle: bundle[0].seed)  # interrupted, there is something of everything


def run_all(name: str, runs: Sequence[Run], results: Results, place: Place, jobs: int, console: Console) -> None:
    """Compute what is missing of results in so many processes; interrupted, it goes on with the rest next time."""
    missing = results.missing(runs)
    with _progress(name, len(runs), console) as advance, _pool(jobs) as pool:
        advance(len(runs) - len(missing))
        pending: dict[Future[list[Outcome]], list[Run]] = {
            pool.submit(execute, bundle, place): bundle for bundle in bundles(missing)
        }
        while pending:
            for done in wait(pending, return_when=FIRST_COMPLETED).done:
                bundle = pending.pop(done)
                results.add(map(Record, bundle, done.result()))
                advance(len(bundle))


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that begin afresh: a fork of one with threads may hang."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(pool._processes.values()):
                process.terminate()
            raise


@contextmanager
def _progress(name: str, total: int, console: Console) -> Iterator[Callable[[int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=total)
        yield lambda runs: progress.advance(task, runs)
