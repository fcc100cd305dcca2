"""`dbw doctor`: what a parameter server reports wrong, as far as the controller can see."""

from collections.abc import Sequence
from typing import Any

import grpc
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from dbw.v1.controller_pb2 import DiagnoseJobRequest, DiagnoseJobResponse, Finding, FindingKind
from dbw_controller.cli.command import Controller, run_command, wide_console
from dbw_runtime.client_command import Argument
from dbw_runtime.failure import reason_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Say what is wrong with the reports of one job, or of all."""
    description = (
        "Say what a parameter server reports wrong, of one job or of all, judging by their last iterations: what was "
        "seen, what was expected, and what to do. Exit code 0 if nothing looks wrong, 1 if something does."
    )
    return run_command("doctor", description, arguments, _doctor, Argument("job", optional=True, or_address=True))


def _doctor(controller: Controller, given: dict[str, Any]) -> int:
    console, calls, sick = wide_console(), controller.calls(), False
    names = [given["job"]] if given["job"] else [job.name for job in controller.all_jobs()]
    for name in names:
        try:
            diagnosis = calls.DiagnoseJob(DiagnoseJobRequest(job=name))
        except grpc.RpcError as error:
            if given["job"] or reason_of(error) != "JOB_NOT_FOUND":
                raise
            continue  # it was deleted since it was listed
        _show(console, name, diagnosis)
        sick |= bool(diagnosis.findings)
    if not names:
        console.print("There are no jobs.")
    return int(sick)


def _show(console: Console, name: str, diagnosis: DiagnoseJobResponse) -> None:
    seen, found = _count(diagnosis.iterations, "iteration"), _count(len(diagnosis.findings), "mistake")
    if not diagnosis.findings:
        console.print(Text(f"{name}: nothing looks wrong in {seen}{_reservation(diagnosis)}."))
        return
    console.print(Text(f"{name}: {found} in {seen}", "bold"))
    for finding in diagnosis.findings:
        often = f"in {_count(finding.iterations, 'iteration')}, the last time in iteration {finding.last_iteration}"
        console.print(_indented(2, f"{_kind(finding)} {often}", "red"))
        console.print(_indented(4, finding.message))


def _reservation(diagnosis: DiagnoseJobResponse) -> str:
    """How little it means that nothing was found, by the thresholds of the controller; an old one has none."""
    sufficient = diagnosis.sufficient_iterations
    if diagnosis.iterations < diagnosis.min_iterations:
        return f", which are too few to judge: ask again after {sufficient}"
    if diagnosis.iterations < sufficient:
        return f", but some mistakes show only after {sufficient}: ask again then"
    return ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _indented(columns: int, text: str, style: str = "") -> Padding:
    return Padding(Text(text, style), (0, 0, 0, columns), expand=False)


def _kind(finding: Finding) -> str:
    """The contract's name, or the number of a kind that only a newer controller knows."""
    names = {number: name.removeprefix("FINDING_KIND_") for name, number in FindingKind.items()}
    return names.get(finding.kind, f"kind {finding.kind}")
