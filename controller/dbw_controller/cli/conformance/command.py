"""Runs all checks against a controller, one after the other, and says how each went."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import grpc

from dbw.v1.controller_pb2 import ListJobsRequest
from dbw_controller.cli.command import Controller, run_command
from dbw_controller.cli.conformance import iterations, jobs, observers, refusals
from dbw_controller.cli.conformance.check import Check, SkippedCheckError
from dbw_controller.cli.conformance.subject import Subject
from dbw_runtime.client_command import ADDRESS
from dbw_runtime.failure import describe

MODULES = (jobs, iterations, refusals, observers)
CHECKS = [check for module in MODULES for check in vars(module).values() if isinstance(check, Check)]
# With these nothing can be checked.
NOTHING_TO_CHECK = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a controller; returns 0 if it conforms."""
    description = (
        "Check any implementation of dbw.v1.ControllerService against the contract, with jobs of its own, which are "
        "deleted afterwards. Exit code 0 if all checks pass, 1 if one fails."
    )
    return run_command("conformance", description, arguments, _conformance, ADDRESS)


def _conformance(controller: Controller, given: dict[str, Any]) -> int:  # noqa: ARG001
    try:
        controller.calls().ListJobs(ListJobsRequest(page_size=1))
    except grpc.RpcError as error:
        if isinstance(error, grpc.Call) and error.code() in NOTHING_TO_CHECK:
            raise
    outcomes = Counter(_run(check, controller) for check in CHECKS)
    skipped = f", {outcomes['SKIPPED']} skipped" if outcomes["SKIPPED"] else ""
    print(f"{outcomes['ok']} passed, {outcomes['FAILED']} failed{skipped}")
    return int(outcomes["FAILED"] > 0)


def _run(check: Check, controller: Controller) -> str:
    """Run a check and print a line about it; returns the first word of that."""
    subject = Subject(controller)
    outcome, problem = "ok", ""
    try:
        check.run(subject)
    except SkippedCheckError as error:
        outcome, problem = "SKIPPED", str(error)
    except StopIteration:
        outcome, problem = "FAILED", "a stream ended before its answer came"
    except Exception as error:  # whatever a controller answers, the other checks go on
        outcome, problem = "FAILED", " ".join(describe(error).split())
    finally:
        left = subject.clean_up()
    print(f"{outcome:<8}{check.name}: {check.claim} {problem}".rstrip(), flush=True)
    if left:
        print(f"        these jobs could not be deleted: {', '.join(left)}", flush=True)
    return outcome
