"""A job: reports in, decisions out."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np
import pytest

from dbw.v1.iteration_pb2 import DecisionReason, MissingInput
from dbw.v1.iteration_pb2 import EndCause as ContractEndCause
from dbw.v1.job_pb2 import UnsampledDuration as ContractUnsampledDuration
from dbw.v1.sync_mode_pb2 import SyncMode as ContractSyncMode
from dbw_controller.core.errors import (
    DecisionNotFoundError,
    InvalidValueError,
    StaleIterationError,
)
from dbw_controller.core.estimators.durations import UnsampledDuration
from dbw_controller.core.estimators.gain import fill_gains
from dbw_controller.core.estimators.round_trips import arrive, guess
from dbw_controller.core.estimators.shadows import replay
from dbw_controller.core.job import LATE_ITERATIONS, warm_up
from dbw_controller.core.job_state import REMEMBERED_DECISIONS
from dbw_controller.core.kernels import COMPILED
from dbw_controller.core.policies import (
    AdaSync,
    BlindDbw,
    Choice,
    Dbw,
    DbwPlus,
    Observation,
    Static,
    Sync,
)
from dbw_controller.core.policies.dbw import best_rate
from dbw_controller.core.policies.dbw_plus import fill_progress
from dbw_controller.core.reasons import Input, Reason
from dbw_controller.core.reports import Arrivals, EndCause, GradientMoments, Membership, Report, first_wrong
from dbw_controller.core.spec import JobSpec, SyncMode
from tests.jobs import MOMENTS, full_report, new_job, seconds, summary, trained_job


def test_the_first_decision_is_there_at_once() -> None:
    decision = new_job().decision()
    assert (decision.iteration, decision.k, decision.reason) == (0, 4, Reason.FIRST_ITERATION)


def test_every_summary_gets_the_decision_for_the_next_iteration() -> None:
    job = new_job()
    decision = job.report(full_report(0))
    assert decision is not None
    assert (decision.iteration, decision.reason) == (1, Reason.NOT_ENOUGH_DATA)  # no loss decrease yet
    decision = job.report(full_report(1, loss=0.9))
    assert decision is not None
    assert (decision.iteration, decision.reason) == (2, Reason.BEST_RATE)
    assert decision.estimates.durations is not None
    assert decision.estimates.gain.smoothness is not None
    assert (job.learnt_iterations, job.loss, job.iteration) == (2, 0.9, 2)


def test_reports_without_a_summary_get_no_decision() -> None:
    assert new_job().report(Report([Arrivals(0, np.array([1.0]))])) is None


def test_a_repeated_summary_gets_the_same_decision_and_counts_once() -> None:
    job = trained_job()
    first = job.report(full_report(6))
    learnt = job.learnt()
    assert job.report(full_report(6, loss=99.0, times=(9.0, 9.0, 9.0, 9.0))) is first
    assert job.learnt() == learnt


def test_a_summary_of_an_earlier_iteration_is_refused_and_changes_nothing() -> None:
    job = trained_job()
    before = job.snapshot()
    with pytest.raises(StaleIterationError, match="6 is next") as error:
        job.report(Report([Arrivals(6, np.array([1.0]))], summary(3), Membership(9)))
    assert (error.value.iteration, error.value.expected) == (3, 6)
    assert job.snapshot() == before


def test_iterations_may_be_missing() -> None:
    job = trained_job()
    decision = job.report(Report(summary=summary(20)))
    assert decision is not None
    assert decision.iteration == 21


def test_nothing_is_learnt_from_arrivals_after_a_gap_unless_it_is_said_what_was_waited_for() -> None:
    job = trained_job(policy=Static(4))
    before = seconds(job)
    job.report(full_report(20, times=(50.0, 50.0, 50.0, 50.0)))
    assert seconds(job) == before
    job.report(full_report(30, times=(50.0, 50.0, 50.0, 50.0), previous_k=4))
    assert seconds(job) != before


def test_in_the_first_iteration_all_workers_are_idle_as_if_all_had_been_waited_for() -> None:
    job = new_job(policy=Static(1))
    job.report(full_report(0, k=1))
    assert job.durations.estimate().shortest.tolist() == [1.0, 1.1, 1.2, 3.0]  # x_4k


def test_a_job_that_begins_in_the_middle_knows_nothing_of_what_was_before() -> None:
    job = new_job(iteration=None)
    assert job.decision().iteration == 0
    job.report(full_report(57))
    assert all(map(math.isnan, seconds(job)))
    job.report(full_report(58))
    assert not any(map(math.isnan, seconds(job)))


def test_arrivals_may_be_reported_in_parts_before_and_after_the_summary() -> None:
    at_once, in_parts = new_job(policy=Static(2)), new_job(policy=Static(2))
    at_once.report(full_report(0, k=2))
    in_parts.report(Report([Arrivals(0, np.array([1.0]))]))
    in_parts.report(Report([Arrivals(0, np.array([1.1]), preceding=1)], summary(0, k=2, moments=MOMENTS)))
    in_parts.report(Report([Arrivals(0, np.array([1.2, 3.0]), preceding=2)]))
    assert seconds(in_parts) == seconds(at_once)


def test_late_arrivals_are_counted() -> None:
    job = trained_job(policy=Static(3))
    assert job.late_arrivals == 6
    job.report(Report([Arrivals(6, np.array([1.0, 2.0]))], summary(6, 3)))
    assert job.late_arrivals == 6
    job.report(Report([Arrivals(6, np.array([3.0, 4.0]), preceding=2)]))
    assert job.late_arrivals == 7


@pytest.mark.skipif(not COMPILED, reason="numba is not installed: there is nothing to compile")
@pytest.mark.parametrize("policy", [Dbw(), BlindDbw(), DbwPlus()])
def test_all_that_decisions_need_can_be_compiled_ahead(policy: Any) -> None:
    warm_up()
    kernels: list[Any] = [first_wrong, fill_gains, fill_progress, best_rate, arrive, guess, replay]
    compiled_for = [len(kernel.signatures) for kernel in kernels]
    assert min(compiled_for) >= 1
    assert trained_job(policy=policy).decision().reason is Reason.BEST_RATE
    assert [len(kernel.signatures) for kernel in kernels] == compiled_for


def test_times_may_be_changed_by_the_caller_afterwards() -> None:
    times = np.array([1.0, 1.0, 1.0, 1.0])
    report = Report([Arrivals(0, times)], summary(0))
    times[:] = 99.0
    job = new_job()
    job.report(report)
    assert seconds(job)[-1] == 1.0


@pytest.mark.parametrize(
    ("bounds", "k", "unbounded"),
    [({"k_min": 3}, 3, 2), ({"k_max": 1}, 1, 2), ({"k_min": 9}, 4, 2), ({"k_min": 2, "k_max": 2}, 2, None)],
)
def test_bounds_are_kept_and_what_they_changed_is_said(bounds: dict[str, int], k: int, unbounded: int | None) -> None:
    decision = new_job(policy=Static(2), **bounds).decision()
    assert (decision.k, decision.unbounded_k) == (k, unbounded)


@dataclass(frozen=True)
class Hurried:
    """A policy that waits for two gradients, up to a deadline."""

    deadlines: dict[str, Any]

    inputs: ClassVar[frozenset[Input]] = frozenset()

    def choose(self, _: Observation) -> Choice:
        return Choice(2, Reason.CUSTOM, "two will do", **self.deadlines)


ONE_DEADLINE = {"deadline_seconds": 7.0}
DEADLINES = {"deadlines": np.array([0.0, 2.0, 3.0, 4.0])}


@pytest.mark.parametrize(
    ("deadlines", "bounds", "expected"),
    [
        (ONE_DEADLINE, {}, 7.0),
        (ONE_DEADLINE, {"k_max": 1}, 7.0),
        (ONE_DEADLINE, {"k_min": 3}, None),  # more gradients take longer
        (DEADLINES, {}, 2.0),
        (DEADLINES, {"k_max": 1}, None),  # no time at all is no deadline
        (DEADLINES, {"k_min": 3}, 3.0),
        (DEADLINES, {"k_min": 9}, 4.0),
    ],
)
def test_a_deadline_is_that_of_the_k_that_the_bounds_ask_for(
    deadlines: dict[str, Any], bounds: dict[str, int], expected: float | None
) -> None:
    assert new_job(policy=Hurried(deadlines), **bounds).decision().deadline_seconds == expected


def test_past_decisions_can_be_asked_for() -> None:
    job = trained_job(REMEMBERED_DECISIONS + 10)
    assert job.decision(job.iteration) is job.decision()
    assert job.decision(11).iteration == 11
    for iteration in (5, 99):
        with pytest.raises(DecisionNotFoundError, match="those of 11 to 74 are remembered"):
            job.decision(iteration)


def test_attaching_in_the_middle_keeps_the_decision() -> None:
    job = trained_job()
    before = job.decision()
    assert job.begin(Membership(3)) is before
    assert job.membership == Membership(3)


def test_going_back_forgets_decisions_and_summaries_but_not_what_was_learnt() -> None:
    job = trained_job()
    before = seconds(job)
    decision = job.begin(Membership(4), iteration=3)
    assert (decision.iteration, job.iteration) == (3, 3)
    assert job.learnt_iterations == 6
    assert seconds(job) == before
    assert job.decision(2).iteration == 2
    with pytest.raises(DecisionNotFoundError):
        job.decision(5)
    later = job.report(full_report(3, times=(1.0, 1.0, 1.0, 1.0)))
    assert later is not None
    assert later.iteration == 4
    assert seconds(job) != before  # its ranks are not those that were reported before


def test_going_back_forgets_the_losses_from_there_on() -> None:
    job = trained_job()  # losses 2.0, 1.9, …, 1.5
    job.begin(Membership(4), iteration=5)
    assert job.loss == 1.6
    job.begin(Membership(4), iteration=2)
    assert job.loss == 1.9  # what the decision for iteration 2 was based on


def test_another_training_keeps_only_durations() -> None:
    job = trained_job(policy=AdaSync())
    before = seconds(job)
    job.begin(Membership(4), iteration=0)
    assert seconds(job) == before
    assert job.gain.estimate().variance is None
    assert job.loss is None


def test_going_forward_is_no_different_from_a_gap_with_idle_workers() -> None:
    job = new_job(policy=Static(2))
    assert job.begin(Membership(4), iteration=50).iteration == 50
    job.report(full_report(50, k=2, times=(1.0, 2.0, 3.0, 4.0)))
    assert job.iteration == 51
    assert job.durations.snapshot(0).rows == [4]  # all four were idle


def test_samples_do_not_get_younger_by_going_back() -> None:
    job = new_job(policy=Static(4), sample_half_life=10.0)
    for iteration in range(11):
        job.report(full_report(iteration, times=(4.0, 4.0, 4.0, 4.0)))
    before = seconds(job)[3]
    job.begin(Membership(4), iteration=1)
    job.report(full_report(1, times=(1.0, 1.0, 1.0, 1.0)))
    weights = [2 ** (i / 10) for i in range(12)]
    expected = (4.0 * sum(weights[:11]) + 1.0 * weights[11]) / sum(weights)
    assert before == 4.0
    assert seconds(job)[3] == pytest.approx(expected)


def test_a_loss_growth_is_seen_only_between_iterations_in_a_row() -> None:
    def k_after(*reports: Report) -> Reason:
        job = new_job(policy=BlindDbw())
        for report in reports:
            job.report(report)
        return job.decision().reason

    falling = (full_report(0, loss=1.0), full_report(1, k=1, loss=0.5))
    assert k_after(*falling, full_report(2, k=3, loss=9.0)) is Reason.LOSS_INCREASED
    assert k_after(*falling, full_report(3, k=3, loss=9.0)) is Reason.BEST_RATE
    assert k_after(*falling, full_report(2, k=3, loss=math.nan)) is Reason.BEST_RATE
    assert k_after(*falling, full_report(2, k=3, loss=math.nan), full_report(3, k=3, loss=9.0)) is Reason.BEST_RATE


@pytest.mark.parametrize(
    ("policy", "fields", "missing"),
    [
        (Dbw(), {}, set()),
        (Dbw(), {"loss": None}, {Input.LOSS}),
        (Dbw(), {"learning_rate": None, "moments": None}, {Input.LEARNING_RATE, Input.MOMENTS}),
        (Dbw(), {"moments": GradientMoments(1.0)}, {Input.MOMENTS}),
        (BlindDbw(), {"learning_rate": None, "moments": None, "loss": None}, {Input.LOSS}),
        (Sync(), {"loss": None}, set()),
    ],
)
def test_what_the_policy_lacks_is_said(policy: Any, fields: dict[str, Any], missing: set[Input]) -> None:
    job = new_job(policy=policy)
    assert job.decision().missing_inputs == set()
    decision = job.report(full_report(0, **fields))
    assert decision is not None
    assert decision.missing_inputs == missing


@pytest.mark.parametrize(
    ("mode", "missing"), [(SyncMode.PUSH_WAIT, {Input.LATE_ARRIVALS}), (SyncMode.PUSH_INTERRUPT, set())]
)
def test_late_arrivals_that_never_come_are_missed(mode: SyncMode, missing: set[Input]) -> None:
    job = new_job(sync_mode=mode)
    for iteration in range(LATE_ITERATIONS + 1):
        assert job.decision().missing_inputs == set()
        job.report(full_report(iteration, k=2, times=(1.0, 2.0)))
    assert job.decision().missing_inputs == missing
    job.report(Report([Arrivals(3, np.array([9.0]), preceding=2, workers=np.array([3]))]))
    job.report(full_report(LATE_ITERATIONS + 1, k=2, times=(1.0, 2.0)))
    assert job.decision().missing_inputs == set()


@dataclass(frozen=True)
class Broken:
    """A policy that fails after the first iteration."""

    answer: Any

    inputs: ClassVar[frozenset[Input]] = frozenset()

    def choose(self, seen: Observation) -> Any:
        if seen.iteration == 0:
            return Choice(1, Reason.CUSTOM, "one will do")
        if isinstance(self.answer, Exception):
            raise self.answer
        return None if self.answer is None else Choice(self.answer, Reason.CUSTOM, "no such k")


@pytest.mark.parametrize("answer", [RuntimeError("out of ideas"), None, 0, 5, 2.5, math.nan])
def test_a_policy_that_fails_does_not_break_the_job(answer: Any) -> None:
    job = new_job(policy=Broken(answer), k_max=3)
    with pytest.raises((RuntimeError, AttributeError, InvalidValueError)):
        job.report(full_report(0, k=1))
    retried = job.report(full_report(0, k=1))
    assert retried is job.decision(1)
    assert retried.k == 3
    assert "the policy failed" in retried.estimates.explanation
    with pytest.raises(InvalidValueError, match="registered"):
        job.snapshot()


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (Reason, DecisionReason, "DECISION_REASON_"),
        (Input, MissingInput, "MISSING_INPUT_"),
        (EndCause, ContractEndCause, "END_CAUSE_"),
        (SyncMode, ContractSyncMode, "SYNC_MODE_"),
        (UnsampledDuration, ContractUnsampledDuration, "UNSAMPLED_DURATION_"),
    ],
)
def test_names_are_those_of_the_contract(ours: type[Enum], theirs: Any, prefix: str) -> None:
    assert {f"{prefix}{item.name}" for item in ours} == set(theirs.keys()) - {f"{prefix}UNSPECIFIED"}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Arrivals(-1, np.array([1.0])), "arrivals.iteration"),
        (lambda: Arrivals(0, np.array([1.0, math.nan])), "arrivals.seconds"),
        (lambda: Arrivals(0, np.array([-0.1])), "arrivals.seconds"),
        (lambda: Arrivals(0, np.array([1e13])), "arrivals.seconds"),
        (lambda: Arrivals(0, np.array([[1.0, 2.0]])), "arrivals.seconds"),
        (lambda: Arrivals(0, np.ones((100, 2))), "arrivals.seconds"),
        (lambda: Arrivals(0, np.array(1.0)), "arrivals.seconds"),
        (lambda: Arrivals(2**63, np.array([1.0])), "arrivals.iteration"),
        (lambda: Arrivals(0, np.array([1.0]), workers=np.array([1, 2])), "arrivals.workers"),
        (lambda: Arrivals(0, np.array([1.0]), preceding=-1), "arrivals.preceding"),
        (lambda: Membership(-1), "membership.live_workers"),
        (lambda: Membership(10**6), "membership.live_workers"),
        (lambda: Membership(2, [7, 7]), "membership.workers"),
        (lambda: summary(0, k=0), "summary.k"),
        (lambda: summary(0, duration_seconds=math.inf), "summary.duration_seconds"),
        (lambda: summary(0, previous_k=0), "summary.previous_k"),
        (lambda: summary(0, previous_k=2.5), "summary.previous_k"),
        (lambda: summary(0, loss="low"), "summary.loss"),
        (lambda: GradientMoments(1.0, degrees_of_freedom=-1), "summary.moments.degrees_of_freedom"),
        (lambda: new_job(policy="dbw"), "policy"),
        (lambda: new_job(policy=Dbw), "policy"),
        (lambda: JobSpec(k_min=0), "k_min"),
        (lambda: JobSpec(k_min=3, k_max=2), "k_max"),
        (lambda: JobSpec(averaging_window=0), "averaging_window"),
        (lambda: JobSpec(sample_half_life=math.nan), "sample_half_life"),
        (lambda: new_job(iteration=-1), "iteration"),
    ],
)
def test_what_is_wrong_is_said(make: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidValueError) as error:
        make()
    assert error.value.field == field
    assert "it must be" in str(error.value)
