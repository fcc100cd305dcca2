"""What a policy learns by itself: a job keeps it, hands it on, and has time to learn it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from dbw_controller.core.decision import Decision
from dbw_controller.core.errors import StateDamagedError
from dbw_controller.core.job import Job
from dbw_controller.core.policies import POLICIES, Choice, Dbw, DbwPlus, Observation, Policy
from dbw_controller.core.policies.dbw_plus_memory import MOST_ROWS_A_WORKER, DbwPlusMemory
from dbw_controller.core.reasons import Input, Reason
from dbw_controller.core.reports import Arrivals, GradientMoments, IterationSummary, Membership, Report
from dbw_controller.core.spec import JobSpec, SyncMode
from dbw_controller.core.state import decode, encode
from tests.jobs import full_report, new_job, trained_job
from tests.states import Change, opened
from tests.timelines import Timeline

WORKERS = 8
DELAY = "shifted-exp:0.5,0.5"
WAIT, INTERRUPT = SyncMode.PUSH_WAIT, SyncMode.PUSH_INTERRUPT
MODES = pytest.mark.parametrize("mode", [WAIT, INTERRUPT])
PLUS = DbwPlus()


def job_of(mode: SyncMode, policy: Policy = PLUS, **fields: Any) -> Job:
    return Job(JobSpec(policy, sync_mode=mode), Membership(WORKERS), **fields)


def reports(job: Job, timeline: Timeline, iterations: int) -> Iterator[Report]:
    """Iterations as the job decides, with a loss that falls."""
    for _ in range(iterations):
        decision = job.decision()
        loss = 0.99**decision.iteration
        moments = GradientMoments(1.0, variance=100 * loss)
        yield timeline.report(decision.k, decision.deadline_seconds, loss=loss, learning_rate=0.1, moments=moments)


def trained(mode: SyncMode, policy: Policy = PLUS, iterations: int = 30) -> tuple[Job, Timeline]:
    job, timeline = job_of(mode, policy), Timeline(WORKERS, DELAY, 0, mode)
    for report in reports(job, timeline, iterations):
        job.report(report)
    return job, timeline


def ask(job: Job) -> Decision:
    """What the job would decide now, with all that it has learnt."""
    return Job.restore(job.snapshot()).adopt(job.learnt())


def seconds(decision: Decision) -> "np.ndarray[Any, np.dtype[np.float64]]":
    assert decision.estimates.durations is not None
    return decision.estimates.durations.seconds


def is_of_ranks(decision: Decision) -> bool:
    """Whether durations are those of ranks, because nothing is known of each worker."""
    return "durations are those of ranks" in decision.estimates.explanation


def knows_floor(decision: Decision) -> bool:
    return "no noise floor is known" not in decision.estimates.explanation


@MODES
@given(eager=st.lists(st.booleans(), min_size=40, max_size=40), split=st.integers(0, 3))
@settings(max_examples=20)
def test_decisions_do_not_depend_on_when_there_was_time_to_learn(mode: SyncMode, eager: list[bool], split: int) -> None:
    """Some arrivals are reported before the end of their iteration, and a worker is away for a while."""
    never, sometimes = job_of(mode), job_of(mode)
    timeline = Timeline(WORKERS, DELAY, 0, mode)
    for at_once, report in zip(eager, reports(never, timeline, len(eager)), strict=True):
        assert report.summary is not None
        members = Membership(WORKERS - (report.summary.iteration in (20, 21)))
        for part in (Report(report.arrivals[:split]), Report(report.arrivals[split:], report.summary, members)):
            mine, other = never.report(part), sometimes.report(part)
            assert (mine and mine.snapshot()) == (other and other.snapshot())
            if at_once:
                sometimes.catch_up()
                sometimes.catch_up()
    assert never.snapshot() == sometimes.snapshot()


@MODES
def test_durations_are_a_step_behind_so_that_no_decision_waits_for_them(mode: SyncMode) -> None:
    job, timeline = job_of(mode), Timeline(WORKERS, DELAY, 0, mode)
    first, second = (job.report(report) for report in reports(job, timeline, 2))
    assert first is not None
    assert second is not None
    assert (is_of_ranks(first), is_of_ranks(second)) == (True, False)


@MODES
def test_reports_that_are_repeated_change_nothing(mode: SyncMode) -> None:
    once, again = job_of(mode), job_of(mode)
    for report in reports(once, Timeline(WORKERS, DELAY, 0, mode), 30):
        mine, other = once.report(report), again.report(report)
        assert again.report(report) is other
        assert (mine and mine.snapshot()) == (other and other.snapshot())
    assert once.snapshot() == again.snapshot()


@MODES
def test_iterations_may_be_missing(mode: SyncMode) -> None:
    job, timeline = trained(mode)
    before = seconds(ask(job))
    for lost in (True, True, True, *[False] * 20):
        for report in reports(job, timeline, 1):
            if not lost:
                job.report(report)
    assert seconds(ask(job)) == pytest.approx(before, rel=0.4)


@MODES
def test_a_restored_job_goes_on_as_it_was(mode: SyncMode) -> None:
    job, timeline = trained(mode)
    copy = Job.restore(job.snapshot())
    assert copy.snapshot() == job.snapshot()
    for report in reports(job, timeline, 30):
        mine, other = job.report(report), copy.report(report)
        assert mine is not None
        assert other is not None
        if mode is INTERRUPT:
            assert mine.snapshot() == other.snapshot()
        assert mine.estimates.gains is not None
        assert other.estimates.gains is not None
        assert other.estimates.gains.tolist() == mine.estimates.gains.tolist()
        assert seconds(other) == pytest.approx(seconds(mine), rel=0.25)  # the shadows' workers are somewhere else
        assert abs(other.k - mine.k) <= 2


@MODES
def test_what_was_learnt_can_be_adopted_by_another_job(mode: SyncMode) -> None:
    teacher, _ = trained(mode)
    job, learnt = job_of(mode), ask(teacher)
    decision = job.adopt(teacher.learnt())
    assert (decision.iteration, decision.k, decision.reason) == (0, learnt.k, learnt.reason)
    assert decision.estimates.explanation == learnt.estimates.explanation
    assert seconds(decision).tolist() == seconds(learnt).tolist()
    assert decision.deadline_seconds == learnt.deadline_seconds
    for report in reports(job, Timeline(WORKERS, DELAY, 1, mode), 20):
        told = job.report(report)
        assert told is not None
        assert seconds(told)[:4] == pytest.approx(seconds(learnt)[:4], rel=0.5)


@pytest.mark.parametrize(("mode", "other"), [(WAIT, INTERRUPT), (INTERRUPT, WAIT)])
def test_of_workers_that_behave_otherwise_only_the_loss_is_adopted(mode: SyncMode, other: SyncMode) -> None:
    teacher, _ = trained(mode)
    job = job_of(other)
    decision = job.adopt(teacher.learnt())
    assert is_of_ranks(decision)
    assert knows_floor(decision)
    for report in reports(job, Timeline(WORKERS, DELAY, 0, other), 2):
        job.report(report)
    assert not is_of_ranks(job.decision())


@MODES
def test_what_another_policy_has_learnt_can_be_adopted(mode: SyncMode) -> None:
    teacher, _ = trained(mode, Dbw())
    job, _ = trained(mode)
    decision = job.adopt(teacher.learnt())
    assert is_of_ranks(decision)
    assert not knows_floor(decision)
    assert job.durations.estimate().seconds.tolist() == teacher.durations.estimate().seconds.tolist()
    assert (job.loss, job.learnt_iterations) == (teacher.loss, teacher.learnt_iterations)


@MODES
def test_another_policy_can_adopt_what_this_one_has_learnt(mode: SyncMode) -> None:
    teacher, _ = trained(mode)
    job = job_of(mode, Dbw())
    decision = job.adopt(teacher.learnt())
    assert decision.estimates.gains is not None
    assert seconds(decision).tolist() == teacher.durations.estimate().seconds.tolist()
    assert opened(job.learnt())["memory"] == {}


def test_a_state_of_before_there_were_memories_can_be_used() -> None:
    job = trained_job(policy=Dbw())
    state = opened(job.snapshot())
    del state["learnt"]["memory"], state["learnt"]["policy"]
    assert Job.restore(encode(state)).snapshot() == job.snapshot()
    assert is_of_ranks(new_job(policy=PLUS).adopt(encode(state["learnt"])))


@MODES
def test_a_new_training_forgets_the_loss_but_not_durations(mode: SyncMode) -> None:
    job, _ = trained(mode)
    before = ask(job)
    decision = job.begin(Membership(WORKERS), iteration=0)
    assert not knows_floor(decision)
    assert not is_of_ranks(decision)
    assert seconds(decision) == pytest.approx(seconds(before), rel=0.2)
    for report in reports(job, Timeline(WORKERS, DELAY, 0, mode), 1):
        told = job.report(report)
        assert told is not None
        assert knows_floor(told)
        assert not is_of_ranks(told)


@MODES
def test_going_back_keeps_all_that_was_learnt(mode: SyncMode) -> None:
    job, _ = trained(mode)
    before = ask(job)
    decision = job.begin(Membership(WORKERS), iteration=10)
    assert decision.estimates.explanation == before.estimates.explanation
    assert seconds(decision) == pytest.approx(seconds(before), rel=0.2)


def test_a_worker_that_is_said_to_have_left_is_not_expected_any_more() -> None:
    timeline, job = Timeline(4, "constant:1 * factors:1,1,1,9"), Job(JobSpec(PLUS), Membership(4, range(4)))
    for report in reports(job, timeline, 40):
        job.report(report)
    assert seconds(job.decision()) == pytest.approx([1.0, 1.0, 1.0, 9.0], rel=0.05)
    for report in reports(job, timeline, 2):
        job.report(Report(report.arrivals, report.summary, Membership(3, [0, 1, 2])))
    assert seconds(job.decision()) == pytest.approx([1.0, 1.0, 1.0], rel=0.05)


def test_arrivals_that_wait_for_an_end_that_never_comes_do_not_pile_up() -> None:
    memory, members = DbwPlusMemory(interrupted=False), Membership(WORKERS)
    batch = Arrivals(0, np.ones(WORKERS), workers=range(WORKERS))
    for _ in range(10 * MOST_ROWS_A_WORKER):
        memory.arrived([batch] * 10)
        memory.catch_up(members)
    assert len(encode(memory.snapshot())) < 10_000
    job = new_job(policy=PLUS)
    for _ in range(10 * MOST_ROWS_A_WORKER):
        job.report(Report([Arrivals(0, np.full(4, 99.0), workers=range(4))]))
    for iteration in range(3):
        job.report(full_report(iteration))
    assert not is_of_ranks(job.decision())


@pytest.mark.parametrize(
    "change",
    [
        lambda memory: memory.pop("floor"),
        lambda memory: memory.pop("roster"),
        lambda memory: memory.pop("trips"),
        lambda memory: memory.pop("interrupted"),
        lambda memory: memory["floor"].update(caution="much"),
        lambda memory: memory["floor"].update(caution=-1e4),
        lambda memory: memory["floor"].update(variance=None),
        lambda memory: memory["roster"].append(0),
        lambda memory: memory["trips"].update(live=None),
    ],
)
@MODES
def test_a_damaged_memory_is_refused_and_changes_nothing(mode: SyncMode, change: Change) -> None:
    job, _ = trained(mode)
    before, state = job.snapshot(), opened(job.snapshot())
    change(state["learnt"]["memory"])
    with pytest.raises(StateDamagedError):
        Job.restore(encode(state))
    with pytest.raises(StateDamagedError):
        job.adopt(encode(state["learnt"]))
    assert job.snapshot() == before


class Diary:
    """A memory that notes what it is told."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    def arrived(self, arrivals: Sequence[Arrivals]) -> None:
        self.pages.append(f"{sum(len(batch.seconds) for batch in arrivals)} arrived")

    def ended(self, summary: IterationSummary) -> None:
        self.pages.append(f"{summary.iteration} ended")

    def catch_up(self, membership: Membership) -> None:
        if self.pages and self.pages[-1].endswith("ended"):
            self.pages.append(f"time to learn, with {membership.live_workers}")

    def reset(self, new_training: bool) -> None:
        self.pages.append("another training" if new_training else "idle")

    def snapshot(self) -> dict[str, Any]:
        return {"pages": list(self.pages)}

    def restore(self, data: Raw) -> None:
        self.pages = [*decode(data, dict[str, list[str]])["pages"], "restored"]


@dataclass(frozen=True)
class Learner:
    """A policy that keeps a diary, and says in the explanation what is in it."""

    inputs: ClassVar[frozenset[Input]] = frozenset()

    def memory(self, interrupted: bool) -> Diary:  # noqa: ARG002
        return Diary()

    def choose(self, seen: Observation) -> Choice:
        assert isinstance(seen.memory, Diary)
        return Choice(seen.workers, Reason.CUSTOM, ", ".join(seen.memory.pages) or "nothing")


def diary(decision: Decision | None) -> list[str]:
    assert decision is not None
    return decision.estimates.explanation.split(", ")


def test_a_memory_is_told_everything_in_order() -> None:
    job = new_job(policy=Learner())
    assert diary(job.decision()) == ["nothing"]
    assert diary(job.report(full_report(0))) == ["4 arrived", "0 ended"]
    job.report(Report([Arrivals(0, np.ones(2))]))
    job.report(Report(membership=Membership(3)))
    expected = ["4 arrived", "0 ended", "time to learn, with 4", "2 arrived", "0 arrived", "4 arrived", "1 ended"]
    assert ", ".join(diary(job.report(full_report(1)))) == ", ".join(expected)
    assert diary(job.begin(Membership(5), iteration=1))[-2:] == ["with 3", "idle"]
    assert diary(job.begin(Membership(5), iteration=0))[-1:] == ["another training"]


def test_a_memory_is_restored_and_handed_on_to_policies_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "learner", Learner)
    job = new_job(policy=Learner())
    job.report(full_report(0))
    assert diary(Job.restore(job.snapshot()).report(full_report(1)))[-3:] == ["restored", "4 arrived", "1 ended"]
    assert diary(new_job(policy=Learner()).adopt(job.learnt()))[-2:] == ["restored", "idle"]
    assert diary(new_job(policy=Learner()).adopt(trained_job(policy=PLUS).learnt())) == ["idle"]


def test_policies_without_a_memory_need_no_time_to_learn() -> None:
    job = trained_job(policy=Dbw())
    before = job.snapshot()
    job.catch_up()
    assert job.snapshot() == before
    assert opened(before)["learnt"]["memory"] == {}
