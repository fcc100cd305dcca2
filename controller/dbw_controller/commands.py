"""`dbw jobs`, `dbw watch`, `dbw why` and `dbw delete`: what operators ask of a running controller."""

import sys
from argparse import ArgumentParser
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Decision, DecisionReason, MissingInput
from dbw.v1.job_pb2 import Job
from dbw_controller.decision import Input, Reason
from dbw_runtime.channel import ConnectionOptions
from dbw_runtime.configuration import UsageError, option, parse
from dbw_runtime.failure import describe

SECONDS = 10.0
OPTIONAL = ("iteration",)
WATCHED_ITERATIONS = 20
WATCHED = ("iteration", "k", "workers", "loss", "seconds", "next k", "why")


@dataclass(frozen=True)
class ClientOptions(ConnectionOptions):
    """Where the controller is."""

    controller: str = option("127.0.0.1:50051", "the controller's address")


Metadata = tuple[tuple[str, str], ...]
Ask = Callable[[Any, Metadata, dict[str, Any]], int]


def _command(name: str, description: str, arguments: Sequence[str] | None, ask: Ask, **positional: type) -> int:
    """Run a command: parse its arguments, connect, and say what went wrong in one line."""
    usage = " ".join(["%(prog)s", *map(str.upper, positional), "[OPTIONS]"])
    parser = ArgumentParser(prog=f"dbw {name}", usage=usage, description=description, allow_abbrev=False)
    for argument, kind in positional.items():
        parser.add_argument(argument, metavar=argument.upper(), type=kind, nargs="?" if argument in OPTIONAL else None)
    options, given = parse(parser, ClientOptions, "client", arguments)
    try:
        connection = options.connection(options.controller)
    except UsageError as error:
        parser.error(str(error))
    try:
        with connection.open() as channel:
            return ask(ControllerServiceStub(channel), connection.metadata(), given)
    except grpc.RpcError as error:
        hint = "; is it running, and does it use TLS or not, as you do?" if _is_unavailable(error) else ""
        print(f"dbw {name}: {options.controller}: {describe(error)}{hint}", file=sys.stderr)
    except BrokenPipeError:  # whoever read this has seen enough
        sys.stdout = None
        return 0
    except OSError as error:
        print(f"dbw {name}: {error}", file=sys.stderr)
    return 1


def jobs(arguments: Sequence[str] | None = None) -> int:
    """List all jobs."""
    return _command("jobs", "List the jobs of a running controller.", arguments, _jobs)


def _jobs(stub: Any, metadata: Metadata, given: dict[str, Any]) -> int:  # noqa: ANN401, ARG001
    table = _table("job", "policy", "iteration", "k", "workers", "loss", "why", "last heard of")
    for job in _all_jobs(stub, metadata):
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
    _console().print(table if table.row_count else "There are no jobs.")
    return 0


def _all_jobs(stub: Any, metadata: Metadata) -> Iterator[Job]:  # noqa: ANN401
    token = ""
    while True:
        page = stub.ListJobs(pb.ListJobsRequest(page_token=token), timeout=SECONDS, metadata=metadata)
        yield from page.jobs
        token = page.next_page_token
        if not token:
            return


def watch(arguments: Sequence[str] | None = None) -> int:
    """Show a job's iterations as they end."""
    description = "Show k, loss, reason and estimates of a job as its iterations end. Ctrl-C stops."
    return _command("watch", description, arguments, _watch, job=str)


def _watch(stub: Any, metadata: Metadata, given: dict[str, Any]) -> int:  # noqa: ANN401
    request = pb.WatchJobRequest(job=given["job"], include_estimates=True)
    responses = stub.WatchJob(request, metadata=metadata)
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
    return _command("why", description, arguments, _why, job=str, iteration=int)


def _why(stub: Any, metadata: Metadata, given: dict[str, Any]) -> int:  # noqa: ANN401
    iteration = given["iteration"]
    if iteration is not None and iteration < 0:
        print(f"dbw why: the iteration is {iteration}; it must be at least 0", file=sys.stderr)
        return 2
    request = pb.GetDecisionRequest(job=given["job"], iteration=iteration, include_estimates=True)
    decision = stub.GetDecision(request, timeout=SECONDS, metadata=metadata).decision
    console, estimates = _console(), decision.estimates
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
    return _command("delete", description, arguments, _delete, job=str)


def _delete(stub: Any, metadata: Metadata, given: dict[str, Any]) -> int:  # noqa: ANN401
    stub.DeleteJob(pb.DeleteJobRequest(job=given["job"]), timeout=SECONDS, metadata=metadata)
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


def _is_unavailable(error: grpc.RpcError) -> bool:
    return isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE


def _console() -> Console:
    """The terminal as wide as it is; a pipe takes lines of any width."""
    console = Console()
    return console if console.is_terminal else Console(width=1000)


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
