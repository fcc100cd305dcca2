"""`python -m tests.history.broken DEFECT …`: a controller with a defect that a history must show."""

import sys
from unittest.mock import patch

from msgspec.structs import replace

from dbw_controller.core.reports import Report
from dbw_controller.server.app import main
from dbw_controller.server.served_job import Outcome, ServedJob
from tests.servers import Controller


def without_fencing() -> None:
    """Every session may change a job, whether it was replaced or not."""
    patch.object(ServedJob, "require_session", lambda *_: None).start()


def without_fenced_deletion() -> None:
    """Every session may delete a job."""
    require = ServedJob._require_deletable
    patch.object(
        ServedJob, "_require_deletable", lambda served, _, silent_seconds: require(served, None, silent_seconds)
    ).start()


def deciding_twice() -> None:
    """A report that is repeated gets another decision."""
    apply = ServedJob.apply_report

    def changed(served: ServedJob, session: str, report: Report, begin: float) -> Outcome:
        outcome = apply(served, session, report, begin)
        if outcome.decision is None or outcome.is_new:
            return outcome
        return replace(outcome, decision=replace(outcome.decision, deadline_seconds=1.0))

    patch.object(ServedJob, "apply_report", changed).start()


class WithoutFencing(Controller):
    """Has that defect."""

    module = "tests.history.broken"
    usual_flags = ("without_fencing", *Controller.usual_flags)


class WithoutFencedDeletion(Controller):
    """Has that defect."""

    module = "tests.history.broken"
    usual_flags = ("without_fenced_deletion", *Controller.usual_flags)


class DecidingTwice(Controller):
    """Has that defect."""

    module = "tests.history.broken"
    usual_flags = ("deciding_twice", *Controller.usual_flags)


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
    sys.exit(main())
