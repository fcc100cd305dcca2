"""The checker itself: it accepts what a controller may answer, and finds what none may."""

from collections.abc import Callable

import pytest

from tests.history.checker import check
from tests.history.operations import Answer, History, Kind, Operation, Watched

UNSAVED = {"resnet": 2}  # when the controller is killed


class Script:
    """A history that is written by hand, of the job `resnet`."""

    def __init__(self) -> None:
        self.history = History()

    def ask(self, kind: Kind, **fields: object) -> Operation:
        """A request."""
        job = "" if kind in (Kind.KILL, Kind.STOP) else "resnet"
        return self.history.invoke(Operation(kind, job, "script", **fields))  # type: ignore[arg-type]

    def create(
        self, session: str, learnt: int, iteration: int, asked: int | None = None, decision: str = "k=1"
    ) -> None:
        """CreateJob, answered."""
        answer = Answer(session, learnt, iteration, decision)
        self.history.answered(self.ask(Kind.CREATE, iteration=asked), answer)

    def end(self, session: str, iteration: int, decision: str = "k=1") -> None:
        """EndIteration, answered."""
        operation = self.ask(Kind.END, session=session, iteration=iteration)
        self.history.answered(operation, Answer(None, None, iteration + 1, decision))

    def job(self, learnt: int, iteration: int, decision: str = "k=1") -> None:
        """GetJob, answered."""
        self.history.answered(self.ask(Kind.JOB), Answer(None, learnt, iteration, decision))

    def do(self, kind: Kind, answer: Answer | None = None, **fields: object) -> None:
        """Anything, answered."""
        self.history.answered(self.ask(kind, **fields), answer or Answer())

    def refuse(self, kind: Kind, reason: str, **fields: object) -> None:
        """Anything, refused."""
        self.history.refused(self.ask(kind, **fields), reason)

    def lose(self, kind: Kind, **fields: object) -> None:
        """Anything whose outcome is unknown."""
        self.history.gave_up(self.ask(kind, **fields))

    def is_possible(self) -> bool:
        """What the checker says."""
        return not check(self.history)


def trained() -> Script:
    """A job with three iterations of the session `a`."""
    script = Script()
    script.create("a", 0, 0)
    for iteration in range(3):
        script.end("a", iteration)
    return script


def another_decision_for_the_same_iteration(script: Script) -> None:
    script.end("a", 2, decision="k=2")


def another_decision_over_another_rpc(script: Script) -> None:
    script.do(Kind.DECISION, Answer(None, None, 2, "k=2"), iteration=2)


def an_iteration_that_counts_twice(script: Script) -> None:
    script.end("a", 2)
    script.job(4, 3)


def a_learnt_state_that_falls(script: Script) -> None:
    script.job(2, 2)


def a_report_of_a_replaced_session_that_counts(script: Script) -> None:
    script.create("b", 3, 3)
    script.end("a", 3)


def a_replaced_session_that_is_called_unknown(script: Script) -> None:
    script.create("b", 3, 3)
    script.refuse(Kind.END, "SESSION_NOT_FOUND", session="a", iteration=3)


def a_replaced_session_that_comes_back(script: Script) -> None:
    script.create("b", 3, 3)
    script.refuse(Kind.END, "SESSION_REPLACED", session="b", iteration=3)
    script.end("a", 3)


def a_replaced_session_that_deletes(script: Script) -> None:
    script.create("b", 3, 3)
    script.do(Kind.DELETE, session="a")


def a_replaced_session_that_imports(script: Script) -> None:
    script.create("b", 3, 3)
    script.do(Kind.IMPORT, Answer(None, 9, 3, "k=1"), session="a", learnt=9)


def a_refused_import_that_changes_the_job(script: Script) -> None:
    script.refuse(Kind.IMPORT, "STATE_DAMAGED", session="a", learnt=9, damaged=True)
    script.job(9, 3)


def an_import_that_vanishes(script: Script) -> None:
    script.do(Kind.IMPORT, Answer(None, 9, 3, "k=2"), session="a", learnt=9)
    script.job(3, 3)


def an_import_that_a_crash_takes_back(script: Script) -> None:
    script.do(Kind.IMPORT, Answer(None, 9, 3, "k=2"), session="a", learnt=9)
    script.do(Kind.KILL, unsaved=UNSAVED)
    script.job(3, 3)


def an_older_import_over_a_newer_state(script: Script) -> None:
    script.do(Kind.IMPORT, Answer(None, 1, 3, "k=1"), session="a", learnt=1, only_if_newer=True)


def a_deleted_job_that_comes_back(script: Script) -> None:
    script.do(Kind.DELETE, session="a")
    script.do(Kind.KILL, unsaved=UNSAVED)
    script.job(3, 3)


def a_crash_that_costs_too_much(script: Script) -> None:
    script.do(Kind.KILL, unsaved=UNSAVED)
    script.job(0, 0)


def an_orderly_stop_that_costs_something(script: Script) -> None:
    script.do(Kind.STOP)
    script.job(2, 2)


def a_session_that_survives_a_crash(script: Script) -> None:
    script.do(Kind.KILL, unsaved=UNSAVED)
    script.end("a", 3)


def a_request_that_happens_after_the_crash_that_lost_it(script: Script) -> None:
    script.lose(Kind.CREATE)
    script.do(Kind.STOP)
    script.create("b", 3, 3)
    script.refuse(Kind.END, "SESSION_REPLACED", session="b", iteration=3)


def a_bug(script: Script) -> None:
    script.refuse(Kind.JOB, "BUG")


def a_watcher_who_misses_an_iteration(script: Script) -> None:
    script.history.watched.append(Watched("resnet", script.history.now(), iterations=[(3, 0), (4, 0), (6, 0)]))
    for iteration in range(3, 7):
        script.end("a", iteration)


def a_watcher_who_sees_an_iteration_twice(script: Script) -> None:
    script.history.watched.append(Watched("resnet", script.history.now(), iterations=[(3, 0), (3, 0)]))


IMPOSSIBLE: list[Callable[[Script], None]] = [
    another_decision_for_the_same_iteration,
    another_decision_over_another_rpc,
    an_iteration_that_counts_twice,
    a_learnt_state_that_falls,
    a_report_of_a_replaced_session_that_counts,
    a_replaced_session_that_is_called_unknown,
    a_replaced_session_that_comes_back,
    a_replaced_session_that_deletes,
    a_replaced_session_that_imports,
    a_refused_import_that_changes_the_job,
    an_import_that_vanishes,
    an_import_that_a_crash_takes_back,
    an_older_import_over_a_newer_state,
    a_deleted_job_that_comes_back,
    a_crash_that_costs_too_much,
    an_orderly_stop_that_costs_something,
    a_session_that_survives_a_crash,
    a_request_that_happens_after_the_crash_that_lost_it,
    a_bug,
    a_watcher_who_misses_an_iteration,
    a_watcher_who_sees_an_iteration_twice,
]


@pytest.mark.parametrize("happens", IMPOSSIBLE, ids=lambda happens: happens.__name__)
def test_what_no_controller_may_answer_is_found(happens: Callable[[Script], None]) -> None:
    script = trained()
    assert script.is_possible()
    happens(script)
    assert not script.is_possible()


def a_crash_that_costs_what_was_not_saved(script: Script) -> None:
    script.do(Kind.KILL, unsaved=UNSAVED)
    script.job(1, 1)
    script.create("b", 1, 1)
    script.end("b", 1)


def a_lost_report_that_counts(script: Script) -> None:
    script.lose(Kind.END, session="a", iteration=3)
    script.job(4, 4)


def a_lost_report_that_does_not_count_until_later(script: Script) -> None:
    script.lose(Kind.END, session="a", iteration=3)
    script.job(3, 3)
    script.job(4, 4)


def a_lost_creation_that_ends_a_session(script: Script) -> None:
    script.lose(Kind.CREATE)
    script.end("a", 3)
    script.refuse(Kind.END, "SESSION_REPLACED", session="a", iteration=4)
    script.job(4, 4)


def a_lost_deletion_before_another_life(script: Script) -> None:
    script.lose(Kind.DELETE, session="a")
    script.create("b", 0, 0)


def an_import_that_decides_again(script: Script) -> None:
    script.do(Kind.IMPORT, Answer(None, 9, 3, "k=2"), session="a", learnt=9)
    script.end("a", 2, decision="k=2")


def a_training_that_begins_again(script: Script) -> None:
    script.create("b", 3, 0, asked=0, decision="k=4")
    script.refuse(Kind.DECISION, "DECISION_NOT_FOUND", iteration=3)


def two_requests_at_once_in_either_order(script: Script) -> None:
    creation, end = script.ask(Kind.CREATE), script.ask(Kind.END, session="a", iteration=3)
    script.history.answered(creation, Answer("b", 4, 4, "k=1"))
    script.history.answered(end, Answer(None, None, 4, "k=1"))


def iterations_that_a_request_reports_beside_its_own(script: Script) -> None:
    for iteration in (2, 3, 4):  # the first is known
        script.do(Kind.END, session="a", iteration=iteration, precedes=True)
    script.end("a", 5)
    script.job(6, 6)


def a_watcher_who_is_told_what_it_missed(script: Script) -> None:
    script.history.watched.append(Watched("resnet", script.history.now(), iterations=[(3, 0), (4, 0), (6, 1)]))


POSSIBLE: list[Callable[[Script], None]] = [
    a_crash_that_costs_what_was_not_saved,
    a_lost_report_that_counts,
    a_lost_report_that_does_not_count_until_later,
    a_lost_creation_that_ends_a_session,
    a_lost_deletion_before_another_life,
    an_import_that_decides_again,
    a_training_that_begins_again,
    two_requests_at_once_in_either_order,
    iterations_that_a_request_reports_beside_its_own,
    a_watcher_who_is_told_what_it_missed,
]


@pytest.mark.parametrize("happens", POSSIBLE, ids=lambda happens: happens.__name__)
def test_what_a_controller_may_answer_is_accepted(happens: Callable[[Script], None]) -> None:
    script = trained()
    happens(script)
    assert script.is_possible(), check(script.history)
