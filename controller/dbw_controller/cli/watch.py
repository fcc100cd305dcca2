"""`dbw watch`: a job's iterations as they end."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from dbw.v1.controller_pb2 import WatchJobRequest, WatchJobResponse
from dbw_controller.cli.command import JOB, Controller, run_command
from dbw_controller.cli.tables import field, new_table, number, reason

MAX_ROWS = 20
COLUMNS = ("iteration", "k", "workers", "loss", "seconds", "next k", "why")


def main(arguments: Sequence[str] | None = None) -> int:
    """Show a job's iterations as they end."""
    description = "Show k, loss, reason and estimates of a job as its iterations end. Ctrl-C stops."
    return run_command("watch", description, arguments, _watch, JOB)


def _watch(controller: Controller, given: dict[str, Any]) -> int:
    request = WatchJobRequest(job=given["job"], include_estimates=True)
    responses = controller.calls(endless=True).WatchJob(request)
    console = Console()
    if console.is_terminal:
        _watch_on_terminal(console, responses)
    else:
        _watch_in_pipe(responses)
    console.print(f"The job {given['job']} was deleted.")
    return 0


def _watch_on_terminal(console: Console, responses: Iterable[WatchJobResponse]) -> None:
    rows: deque[tuple[str, ...]] = deque(maxlen=MAX_ROWS)
    with Live(console=console, auto_refresh=False) as live:
        for response in responses:
            if response.HasField("summary"):
                rows.append(_row(response))
            live.update(_watch_table(response, rows), refresh=True)


def _watch_in_pipe(responses: Iterable[WatchJobResponse]) -> None:
    for response in responses:
        print("\t".join(_row(response) if response.HasField("summary") else COLUMNS), flush=True)


def _row(response: WatchJobResponse) -> tuple[str, ...]:
    summary, decision = response.summary, response.job.decision
    return (
        str(summary.iteration),
        str(summary.k),
        str(response.job.membership.live_workers),
        field(summary, "loss"),
        number(summary.duration_seconds),
        str(decision.k),
        reason(decision),
    )


def _watch_table(response: WatchJobResponse, rows: Iterable[tuple[str, ...]]) -> Table:
    job, why = response.job, response.job.decision.estimates
    estimates = f"‖∇F‖² {field(why, 'squared_norm')}   V {field(why, 'variance')}   L {field(why, 'smoothness')}"
    table = new_table(*COLUMNS)
    workers, iteration = job.membership.live_workers, job.decision.iteration
    table.title = f"{job.name}: k = {job.decision.k} of {workers} for iteration {iteration}"
    table.caption = f"{why.explanation}\n{estimates}"
    for row in rows:
        table.add_row(*row)
    return table
