"""`dbw why`: the estimates and the rule behind one decision."""

import sys
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dbw.v1.controller_pb2 import GetDecisionRequest
from dbw.v1.iteration_pb2 import Decision
from dbw_controller.cli.command import JOB, Controller, run_command, wide_console
from dbw_controller.cli.tables import missing_input, new_table, number, reason
from dbw_runtime.client_command import Argument


def main(arguments: Sequence[str] | None = None) -> int:
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
    request = GetDecisionRequest(job=given["job"], iteration=iteration, include_estimates=True)
    decision = controller.calls().GetDecision(request).decision
    console, estimates = wide_console(), decision.estimates
    console.print(
        f"{given['job']}, iteration {decision.iteration}: wait for {decision.k} of {decision.live_workers} workers"
    )
    console.print(f"Rule: {reason(decision)}. {estimates.explanation}")
    if decision.HasField("unbounded_k"):
        console.print(f"The job's bounds changed it: the rule chose {decision.unbounded_k}.")
    for missing in decision.missing_inputs:
        console.print(f"Not reported by the parameter server: {missing_input(missing)}.")
    for name, text in (("squared_norm", "‖∇F‖²"), ("variance", "V(g)"), ("smoothness", "L"), ("loss", "F")):
        if estimates.HasField(name):
            console.print(f"{text} = {number(getattr(estimates, name))}")
    if estimates.gains or estimates.durations_seconds:
        console.print(_why_table(decision))
    return 0


def _why_table(decision: Decision) -> Table:
    """One row a k; the chosen one stands out."""
    estimates = decision.estimates
    table = new_table("k", "gain", "seconds", "at least", "at most", "gain per second", "")
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
        cells = [str(k), *map(number, (gain, seconds, low, high, rate)), "◀" if k == decision.k else ""]
        table.add_row(*cells, style="bold" if k == decision.k else None)
    return table
