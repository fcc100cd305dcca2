"""`dbw jobs`, `dbw watch`, `dbw why` and `dbw delete`: what operators ask of a running controller."""

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import Decision, DecisionReason, MissingInput
from dbw_controller.cli.command import Argument, Controller, run_command, wide_console
from dbw_controller.core.reasons import Input, Reason

WATCHED_ITERATIONS = 20
WATCHED = ("iteration", "k", "workers", "loss", "seconds", "next k", "why")
JOB = Argument("job")


def jobs(arguments: Sequence[str] | None = None) -> int:
    """List all jobs."""
    return run_command("jobs", "List the jobs of a running controller.", arguments, _jobs)


def _jobs(controller: Controller, given: dict[str, Any]) -> int:  # noqa: ARG001
    table = _table("job", "policy", "iteration", "k", "workers", "loss", "why", "last heard of")
    for job in controller.all_jobs():
        decision = job.decision
        table.add_row(
            job.name,
            (job.spec.policy.WhichOneof("rule") or "").replace("_", "-"),
            str(decision.iteration),
            str(decision.k),
            str(job.membership.live_workers),
            _number(job.loss if job.HasField("loss") else None),
            _reason(decision),
            job.update_time.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC"),
        )
    wide_console().print(table if table.row_count else "There are no jobs.")
    return 0


def watch(arguments: Sequence[str] | None = None) -> int:
    """Show a job's iterations as they end."""
    description = "Show k, loss, reason and estimates of a job as its iterations end. Ctrl-C stops."
    return run_command("watch", description, arguments, _watch, JOB)


def _watch(controller: Controller, given: dict[str, Any]) -> int:
    request = pb.WatchJobRequest(job=given["job"], include_estimates=True)
    responses = controller.calls(endless=True).WatchJob(request)
    console = Console()
    if console.is_terminal:
        _watch_on_terminal(console, responses)
    else:
        _watch_in_pipe(responses)
    console.print(f"The job {given['job']} was deleted.")
    return 0


def _watch_on_terminal(console: Console, responses: Iterable[pb.WatchJobResponse]) -> None:
    rows: deque[tuple[str, ...]] = deque(maxlen=WATCHED_ITERATIONS)
    with Live(console=console, auto_refresh=False) as live:
        for response in responses:
            if response.HasField("summary"):
                rows.append(_row(response))
            live.update(_watch_table(response, rows), refresh=True)


def _watch_in_pipe(responses: Iterable[pb.WatchJobResponse]) -> None:
    for response in responses:
        print("\t".join(_row(response) if response.HasField("summary") else WATCHED), flush=True)


def _row(response: pb.WatchJobResponse) -> tuple[str, ...]:
    summary, decision = response.summary, response.job.decision
    return (
        str(summary.iteration),
        str(summary.k),
        str(response.job.membership.live_workers),
        _number(summary.loss if summary.HasField("loss") else None),
        _number(summary.duration_seconds),
        str(decision.k),
        _reason(decision),
    )


def _watch_table(response: pb.WatchJobResponse, rows: Iterable[tuple[str, ...]]) -> Table:
    job, why = response.job, response.job.decision.estimates
    estimates = (
        f"‖∇F‖² {_number(why.squared_norm if why.HasField('squared_norm') else None)}   "
        f"V {_number(why.variance if why.HasField('variance') else None)}   "
        f"L {_number(why.smoothness if why.HasField('smoothness') else None)}"
    )
    table = _table(*WATCHED)
    table.title = (
        f"{job.name}: k = {job.decision.k} of {job.membership.live_workers} for iteration {job.decision.iteration}"
    )
    table.caption = f"{why.explanation}\n{estimates}"
    for row in rows:
        table.add_row(*row)
    return table


def why(arguments: Sequence[str] | None = None) -> int:
    """Explain one decision."""
    description = (
        "Explain a decision of a job, the newest one or that for one of the last iterations: gain and duration of "
        "every k, and the rule that chose."
    )
    return run_command("why", description, arguments, _why, JOB, Argument("iteration", int, optional=True))


def _why(controller: Controller, given: dict[str, Any]) -> int:
    iteration = given["iteration"]
    if iteration is not None and iteration < 0:
        print(f"dbw why: the iteration is {iteration}; it must be at least 0", file=sys.stderr)
        return 2
    request = pb.GetDecisionRequest(job=given["job"], iteration=iteration, include_estimates=True)
    decision = controller.calls().GetDecision(request).decision
    console, estimates = wide_console(), decision.estimates
    console.print(
        f"{given['job']}, iteration {decision.iteration}: wait for {decision.k} of {decision.live_workers} workers"
    )
    console.print(f"Rule: {_reason(decision)}. {estimates.explanation}")
    if decision.HasField("unbounded_k"):
        console.print(f"The job's bounds changed it: the rule chose {decision.unbounded_k}.")
    for missing in decision.missing_inputs:
        console.print(f"Not told by the parameter server: {_missing(missing)}.")
    for name, text in (("squared_norm", "‖∇F‖²"), ("variance", "V(g)"), ("smoothness", "L"), ("loss", "F")):
        if estimates.HasField(name):
            console.print(f"{text} = {_number(getattr(estimates, name))}")
    if estimates.gains or estimates.durations_seconds:
        console.print(_why_table(decision))
    return 0


def delete(arguments: Sequence[str] | None = None) -> int:
    """Delete a job."""
    description = "Delete a job and all that it has learnt."
    return run_command("delete", description, arguments, _delete, JOB)


def _delete(controller: Controller, given: dict[str, Any]) -> int:
    controller.calls().DeleteJob(pb.DeleteJobRequest(job=given["job"]))
    print(f"The job {given['job']} was deleted.")
    return 0


def _why_table(decision: Decision) -> Table:
    """One row a k; the chosen one stands out."""
    estimates = decision.estimates
    table = _table("k", "gain", "seconds", "at least", "at most", "gain per second", "")
    for k in range(1, decision.live_workers + 1):
        gain, seconds, low, high = (
            column[k - 1] if column else None
            for column in (
                estimates.gains,
                estimates.durations_seconds,
                estimates.shortest_seconds,
                estimates.longest_seconds,
            )
        )
        rate = gain / seconds if gain is not None and seconds else None
        cells = [str(k), *map(_number, (gain, seconds, low, high, rate)), "◀" if k == decision.k else ""]
        table.add_row(*cells, style="bold" if k == decision.k else None)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="left" if column in ("job", "policy", "why", "") else "right")
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _reason(decision: Decision) -> str:
    name = DecisionReason.Name(decision.reason).removeprefix("DECISION_REASON_")
    return Reason[name].value if name in Reason.__members__ else name.lower()


def _missing(item: MissingInput.ValueType) -> str:
    name = MissingInput.Name(item).removeprefix("MISSING_INPUT_")
    return Input[name].value if name in Input.__members__ else name.lower()
