"""A job can be kept, restored, and what it has learnt handed on."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from dbw_controller.core.errors import (
    NotSupportedError,
    StateDamagedError,
    StateFormatUnknownError,
)
from dbw_controller.core.job import Job
from dbw_controller.core.job_state import STATE_VERSION
from dbw_controller.core.policies import POLICIES, BlindDbw, Choice, DbwPlus, Observation, Static
from dbw_controller.core.reasons import Input, Reason
from dbw_controller.core.reports import MAX_ITERATION, Arrivals, GradientMoments, IterationSummary, Membership, Report
from dbw_controller.core.spec import JobSpec, SyncMode
from tests.jobs import full_report, new_job, seconds, trained_job
from tests.states import Change, changed


def test_what_was_adopted_counts_for_less_where_there_are_other_numbers_of_workers() -> None:
    teacher = new_job(policy=Static(4))
    for iteration in range(20):
        teacher.report(full_report(iteration, times=(1.0, 1.0, 1.0, 1.0)))
    job = new_job(workers=8, policy=Static(4))
    job.adopt(teacher.learnt())
    job.report(full_report(0, times=(4.0, 4.0, 4.0, 4.0), previous_k=4))
    assert seconds(job)[3] == pytest.approx((1.0 + 4.0) / 2)


def test_a_snapshot_holds_the_whole_job() -> None:
    job = trained_job(30, sample_half_life=8.0)
    job.report(Report([Arrivals(35, np.array([1.0]))]))  # waits for what was before it
    copy = Job.restore(job.snapshot())
    assert copy.snapshot() == job.snapshot()
    for iteration in range(30, 40):
        report = full_report(iteration, job.decision().k, loss=1.0 + iteration % 3)
        mine, other = job.report(report), copy.report(report)
        assert mine is not None
        assert other is not None
        assert (mine.k, mine.reason, mine.missing_inputs) == (other.k, other.reason, other.missing_inputs)
    assert seconds(copy) == pytest.approx(seconds(job), rel=1e-12)


def test_a_restored_job_gives_the_decisions_it_gave() -> None:
    job = trained_job()
    copy = Job.restore(job.snapshot())
    for iteration in range(7):
        assert copy.decision(iteration).snapshot() == job.decision(iteration).snapshot()
    repeated = copy.report(full_report(5))
    assert repeated is copy.decision(6)


def test_what_was_learnt_can_be_adopted_by_another_job() -> None:
    teacher = trained_job()
    job = Job(JobSpec(policy=BlindDbw()), Membership(4), iteration=100)
    decision = job.adopt(teacher.learnt())
    assert (decision.iteration, decision.reason) == (100, Reason.BEST_RATE)
    assert seconds(job) == seconds(teacher)
    assert (job.learnt_iterations, job.loss) == (6, teacher.loss)
    assert job.membership == Membership(4)


@dataclass(frozen=True)
class NumpyPolicy:
    """A policy that computes with NumPy."""

    inputs: ClassVar[frozenset[Input]] = frozenset()

    def choose(self, seen: Observation) -> Choice:
        k: Any = np.argmax([0, seen.workers]) + 1
        return Choice(k, Reason.CUSTOM, "two")


def test_numbers_may_be_of_numpys_types(monkeypatch: pytest.MonkeyPatch) -> None:
    number: Any = np.float32(1.5)
    count: Any = np.int16(2)
    job = Job(JobSpec(policy=NumpyPolicy()), Membership(count + 2), count)
    moments = GradientMoments(number, sum_squared_norms=8 * number)
    told = IterationSummary(count, count, number, loss=number, learning_rate=number, moments=moments)
    job.report(Report([Arrivals(count, np.array([1, 2, 3, 4]))], told))
    monkeypatch.setitem(POLICIES, "numpy", NumpyPolicy)
    state = job.snapshot()
    assert Job.restore(state).snapshot() == state
    monkeypatch.delitem(POLICIES, "numpy")
    with pytest.raises(NotSupportedError, match="'numpy' is not registered"):
        Job.restore(state)


def test_a_loss_of_another_job_does_not_look_like_growth() -> None:
    teacher = trained_job()
    teacher.report(full_report(6, loss=9.0))
    job = trained_job(policy=BlindDbw())
    job.adopt(teacher.learnt())
    assert job.decision().reason is Reason.BEST_RATE


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda s: s.update(version=STATE_VERSION + 1), StateFormatUnknownError),
        (lambda s: s.update(version="one"), StateFormatUnknownError),
        (lambda s: s.pop("version"), StateDamagedError),
        (lambda s: s.pop("log"), StateDamagedError),
        (lambda s: s["spec"].update(policy="magic"), NotSupportedError),
        (lambda s: s["spec"].update(parameters={"loss_increase_factor": 0}), StateDamagedError),
        (lambda s: s["learnt"]["durations"].update(weights=b"123"), StateDamagedError),
        (lambda s: s["learnt"].update(gain=None), StateDamagedError),
        (lambda s: s.update(decisions=[]), StateDamagedError),
    ],
)
def test_a_damaged_snapshot_is_refused(change: Change, error: type[Exception]) -> None:
    state = changed(trained_job().snapshot(), change)
    with pytest.raises(error):
        Job.restore(state)


@pytest.mark.parametrize("change", [lambda s: s.update(version=99), lambda s: s["durations"].update(rows=[77])])
def test_a_damaged_state_is_not_adopted(change: Change) -> None:
    job = trained_job()
    before, state = job.snapshot(), changed(job.learnt(), change)
    with pytest.raises((StateDamagedError, StateFormatUnknownError)):
        job.adopt(state)
    assert job.snapshot() == before


@dataclass(frozen=True)
class Moody(Static):
    """A policy that fails for whoever has learnt something."""

    def choose(self, seen: Observation) -> Choice:
        """Choose, or fail."""
        if seen.learnt_iterations > 0:
            raise RuntimeError("in a bad mood")
        return super().choose(seen)


def test_a_job_whose_policy_fails_on_what_it_would_adopt_stays_as_it_is() -> None:
    job = Job(JobSpec(policy=Moody(2)), Membership(4))
    before = job.learnt(), job.decision()
    with pytest.raises(RuntimeError, match="in a bad mood"):
        job.adopt(trained_job().learnt())
    assert (job.learnt(), job.decision()) == before


def test_numbers_that_are_encoded_shorter_than_they_are_written_are_refused_beyond_a_few() -> None:
    few, many = [[1] * count for count in (10, 10_000)]
    job = new_job()
    job.adopt(changed(trained_job().learnt(), lambda state: state["gain"].update(variances=few)))
    with pytest.raises(StateDamagedError):
        job.adopt(changed(trained_job().learnt(), lambda state: state["gain"].update(variances=many)))


def test_the_estimates_of_a_decision_do_not_keep_those_of_workers_that_are_gone() -> None:
    job = new_job(workers=4)
    job.report(full_report(0))
    job.report(Report(membership=Membership(2)))
    job.report(full_report(1, k=2))
    durations = job.decision().estimates.durations
    assert durations is not None
    assert [(len(column), column.base) for column in durations] == [(2, None)] * 3


def test_a_job_that_has_adopted_the_largest_counts_can_be_restored_when_it_has_gone_on() -> None:
    def count(state: dict[str, Any]) -> None:
        state["learnt_iterations"] = state["memory"]["drawn"] = MAX_ITERATION
        state["memory"]["floor"].update(dict.fromkeys(("since", "iterations", "without_variance"), 2**63 - 1))

    spec = JobSpec(DbwPlus(), sync_mode=SyncMode.PUSH_INTERRUPT)
    teacher, job = Job(spec, Membership(4)), Job(spec, Membership(4))
    teacher.report(full_report(0))
    job.adopt(changed(teacher.learnt(), count))
    job.report(full_report(0))
    assert Job.restore(job.snapshot()).learnt_iterations == MAX_ITERATION
