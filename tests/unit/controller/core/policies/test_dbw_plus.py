"""DBW+ through a job: what it chooses for clusters on a virtual clock, and what it says about that."""

import re
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import pytest

from dbw_controller.core.decision import Decision
from dbw_controller.core.estimators.noise_floor import PATIENCE
from dbw_controller.core.job import Job
from dbw_controller.core.policies import DbwPlus
from dbw_controller.core.policies.dbw_plus import DEADLINE, DEVIATIONS, NOISE_COST, PROBE_EVERY
from dbw_controller.core.reasons import Input, Reason
from dbw_controller.core.reports import EndCause, GradientMoments, Membership, Report
from dbw_controller.core.spec import JobSpec, SyncMode
from tests.timelines import Timeline

WORKERS = 16
RATE = 0.1
VARIABLE = "exp:1"
MODES = pytest.mark.parametrize("mode", SyncMode)


def noise(kappa: float, iteration: int) -> dict[str, Any]:
    """What a summary tells where the noise floor of so many gradients is at the loss, which falls slowly."""
    loss = 0.995**iteration
    return {"loss": loss, "learning_rate": RATE, "moments": GradientMoments(1.0, variance=4 * kappa * loss / RATE)}


def new_job(mode: SyncMode = SyncMode.PUSH_WAIT, policy: DbwPlus = DbwPlus(), **spec: Any) -> Job:  # noqa: B008
    return Job(JobSpec(policy, sync_mode=mode, **spec), Membership(WORKERS))


def train(job: Job, timeline: Timeline, iterations: int, kappa: float = 1.0, **told: Any) -> list[Decision]:
    """Go through iterations as the job decides; returns the decisions that it makes."""
    decisions = []
    for _ in range(iterations):
        decision = job.decision()
        fields = {**noise(kappa, decision.iteration), **told}
        job.report(timeline.report(decision.k, decision.deadline_seconds, **fields))
        decisions.append(job.decision())
    return decisions


def trained(
    delay: str, kappa: float = 1.0, iterations: int = 60, mode: SyncMode = SyncMode.PUSH_WAIT, **told: Any
) -> list[Decision]:
    return train(new_job(mode), Timeline(WORKERS, delay, 0, mode), iterations, kappa, **told)


def seconds(decision: Decision) -> "np.ndarray[Any, np.dtype[np.float64]]":
    assert decision.estimates.durations is not None
    return decision.estimates.durations.seconds


def ks(decisions: list[Decision]) -> list[int]:
    return [decision.k for decision in decisions]


@MODES
def test_the_first_k_is_half_of_all(mode: SyncMode) -> None:
    decision = new_job(mode).decision()
    assert (decision.k, decision.reason, decision.deadline_seconds) == (WORKERS // 2, Reason.FIRST_ITERATION, None)
    assert [Job(JobSpec(DbwPlus()), Membership(workers)).decision().k for workers in (0, 1, 2, 3)] == [1, 1, 1, 2]


@MODES
def test_the_more_noise_the_more_gradients(mode: SyncMode) -> None:
    delay = "shifted-exp:0.8,0.2"
    chosen = [median(ks(trained(delay, kappa, mode=mode)[30:])) for kappa in (0.001, 0.3, 100.0)]
    assert chosen == sorted(chosen)
    assert chosen[0] <= 2 < chosen[1]
    assert chosen[-1] >= 0.7 * WORKERS


@MODES
def test_where_the_loss_has_stalled_more_gradients_are_waited_for(mode: SyncMode) -> None:
    steady = noise(0.1, iteration=0)
    decisions = trained("shifted-exp:0.8,0.2", iterations=8 * PATIENCE, mode=mode, **steady)
    assert median(ks(decisions[-20:])) >= median(ks(decisions[20:PATIENCE])) + 2


@MODES
@pytest.mark.parametrize("kappa", [0.001, 100.0])
def test_where_all_come_at_the_same_time_all_are_waited_for(mode: SyncMode, kappa: float) -> None:
    for decision in trained("constant:1", kappa, mode=mode)[1:]:
        assert (decision.k, decision.reason) == (WORKERS, Reason.BEST_RATE)


@MODES
def test_where_noise_is_all_that_is_left_all_are_waited_for(mode: SyncMode) -> None:
    for decision in trained(VARIABLE, mode=mode, loss=1e-320)[1:]:
        assert (decision.k, decision.reason) == (WORKERS, Reason.NO_POSITIVE_GAIN)
        assert "the noise floor of every k is above the loss" in decision.estimates.explanation


@MODES
def test_slow_workers_are_not_waited_for(mode: SyncMode) -> None:
    """With so much noise all would be waited for if they took equally long."""
    decisions = trained("uniform:0.9,1.1 * slowdown:20,workers=0-3", 10.0, mode=mode)
    assert set(ks(decisions[20:])) <= set(range(9, 13))


@pytest.mark.parametrize(("mode", "patience"), [(SyncMode.PUSH_WAIT, 10), (SyncMode.PUSH_INTERRUPT, 60)])
@pytest.mark.parametrize("trip", ["constant:1", "uniform:0.95,1.05"])
def test_a_slowdown_of_half_the_workers_is_answered_and_its_end_too(mode: SyncMode, patience: int, trip: str) -> None:
    """Where workers are interrupted, the slow ones are seen only when they are waited for from time to time."""
    start, end = 50.0, 300.0
    timeline = Timeline(WORKERS, f"{trip} * slowdown:5,from={start},until={end},workers=0-7", 0, mode)
    job = new_job(mode)
    slow: list[int] = []
    fast: list[int] = []
    while timeline.now < end + 150.0:
        chosen = slow if start <= timeline.now < end else fast
        chosen += ks(train(job, timeline, 1, 10.0))
        if start <= timeline.now < end:
            fast.clear()
    assert median(slow[patience:]) == 8
    assert min(fast[patience:]) > 12


def test_what_the_decision_is_based_on_can_be_seen() -> None:
    decision = trained(VARIABLE)[-1]
    gains = decision.estimates.gains
    assert gains is not None
    assert len(gains) == len(seconds(decision)) == WORKERS
    assert (np.diff(gains) > 0).all()
    assert (np.diff(seconds(decision)) >= 0).all()
    assert ((gains > 0) & (gains < 1)).all()
    assert decision.reason is Reason.BEST_RATE
    assert decision.k == np.argmax(gains / seconds(decision)) + 1
    assert f"k = {decision.k} has the largest progress per second" in decision.estimates.explanation
    told = re.search(r"noise costs (\d+)% more iterations", decision.estimates.explanation)
    assert told is not None
    assert float(told[1]) == pytest.approx(100 * NOISE_COST / decision.k, rel=0.1)


def test_without_the_workers_numbers_durations_are_those_of_ranks() -> None:
    job = new_job()
    for decision in train(job, Timeline(WORKERS, VARIABLE), 20, numbered=False):
        assert "durations are those of ranks" in decision.estimates.explanation
        assert decision.deadline_seconds is None
        assert Input.WORKER_NUMBERS in decision.missing_inputs
    assert seconds(decision).tolist() == job.durations.estimate().seconds.tolist()


@pytest.mark.parametrize("missing", ["loss", "learning_rate", "moments"])
def test_without_what_the_floor_needs_gradients_are_counted(missing: str) -> None:
    told: dict[str, Any] = {missing: None}
    for decision in trained(VARIABLE, **told):
        assert decision.estimates.gains is not None
        assert decision.estimates.gains.tolist() == list(range(1, WORKERS + 1))
        assert "no noise floor is known" in decision.estimates.explanation


WITHIN = GradientMoments(1.0, variance=40.0, within_worker_variance=40.0, degrees_of_freedom=4)


@pytest.mark.parametrize(
    ("told", "missing"),
    [
        ({"moments": WITHIN}, set()),
        ({}, set()),
        ({"moments": WITHIN, "loss": None}, {Input.LOSS}),
        ({"moments": WITHIN, "learning_rate": None}, {Input.LEARNING_RATE}),
        ({"moments": None}, {Input.MOMENTS}),
        ({"moments": WITHIN, "numbered": False}, {Input.WORKER_NUMBERS}),
    ],
)
def test_what_it_lacks_is_said(told: dict[str, Any], missing: set[Input]) -> None:
    assert new_job().decision().missing_inputs == set()
    assert trained(VARIABLE, iterations=5, **told)[-1].missing_inputs == missing


def pace(job: Job, iterations: int, single: GradientMoments, several: GradientMoments) -> list[Decision]:
    """Decisions for one worker that is a hundred times faster than the others, with next to no noise."""
    timeline = Timeline(WORKERS, "constant:1 * factors:1,100,100,100,100,100,100,100,100,100,100,100,100,100,100,100")
    decisions = []
    for _ in range(iterations):
        k = job.decision().k
        moments = single if k == 1 else several
        job.report(timeline.report(k, loss=1.0, learning_rate=RATE, moments=moments))
        decisions.append(job.decision())
    return decisions


def test_a_single_gradient_is_left_for_two_from_time_to_time_to_learn_the_variance() -> None:
    decisions = pace(new_job(), 6 * PROBE_EVERY, GradientMoments(1.0), GradientMoments(1.0, variance=1e-3))
    assert set(ks(decisions[10:])) == {1, 2}
    probes = [i for i, decision in enumerate(decisions) if decision.reason is Reason.PROBE]
    assert {decisions[i].k for i in probes} == {2}
    assert "k = 2 tells the variance" in decisions[probes[0]].estimates.explanation
    assert all(later - earlier > PROBE_EVERY for earlier, later in pairwise(probes))
    assert len(probes) >= 4


def test_a_single_gradient_will_do_where_workers_tell_the_variance() -> None:
    told = GradientMoments(1.0, within_worker_variance=1e-3, degrees_of_freedom=1)
    decisions = pace(new_job(), 6 * PROBE_EVERY, told, told)
    assert set(ks(decisions[10:])) == {1}


def test_of_one_worker_there_is_no_second_gradient() -> None:
    job = Job(JobSpec(DbwPlus()), Membership(1))
    decisions = train(job, Timeline(1, VARIABLE), 3 * PROBE_EVERY, moments=GradientMoments(1.0))
    assert set(ks(decisions)) == {1}
    assert Reason.PROBE not in {decision.reason for decision in decisions}


@MODES
def test_deadlines_are_beyond_what_is_expected(mode: SyncMode) -> None:
    decisions = trained(VARIABLE, mode=mode)[2:]
    for decision in decisions:
        assert decision.deadline_seconds is not None
        assert decision.deadline_seconds >= DEADLINE * seconds(decision)[decision.k - 1]


@MODES
def test_hardly_any_iteration_of_a_steady_cluster_is_cut_short(mode: SyncMode) -> None:
    job, timeline, cut, iterations = new_job(mode), Timeline(WORKERS, VARIABLE, 0, mode), 0, 300
    for _ in range(iterations):
        report = timeline.report(job.decision().k, job.decision().deadline_seconds, **noise(1.0, job.iteration))
        assert report.summary is not None
        cut += report.summary.end_cause is EndCause.DEADLINE
        job.report(report)
    assert cut < 0.02 * iterations


def test_a_deadline_ends_the_wait_for_a_worker_that_has_stalled() -> None:
    timeline = Timeline(WORKERS, "constant:1 * slowdown:1000000,from=20,workers=0")
    decisions = train(new_job(), timeline, 60, 100.0)
    assert timeline.now < 100.0
    assert ks(decisions)[-1] == WORKERS - 1


@MODES
def test_without_deadlines_there_are_none(mode: SyncMode) -> None:
    job = new_job(mode, DbwPlus(deadlines=False))
    for decision in train(job, Timeline(WORKERS, VARIABLE, 0, mode), 20):
        assert decision.deadline_seconds is None


@MODES
@pytest.mark.parametrize(("bounds", "kappa"), [({"k_min": 12}, 0.001), ({"k_max": 3}, 100.0)])
def test_where_the_jobs_bounds_change_k_the_deadline_is_that_of_their_k(
    mode: SyncMode, bounds: dict[str, Any], kappa: float
) -> None:
    decisions = train(new_job(mode, **bounds), Timeline(WORKERS, VARIABLE, 0, mode), 40, kappa)
    bounded = [decision for decision in decisions[2:] if decision.unbounded_k is not None]
    assert {decision.k for decision in bounded} == set(bounds.values())
    for decision in bounded:
        assert decision.deadline_seconds is not None
        assert DEADLINE * seconds(decision)[decision.k - 1] <= decision.deadline_seconds
        assert decision.deadline_seconds < DEADLINE * (1 + 3 * DEVIATIONS) * seconds(decision)[decision.k - 1]


def test_gradients_that_the_jobs_bounds_ask_for_are_rarely_cut_off() -> None:
    job, timeline, cut, iterations = new_job(k_min=12), Timeline(WORKERS, VARIABLE), 0, 300
    for _ in range(iterations):
        report = timeline.report(job.decision().k, job.decision().deadline_seconds, **noise(0.001, job.iteration))
        assert report.summary is not None
        cut += report.summary.end_cause is EndCause.DEADLINE
        job.report(report)
    assert cut < 0.02 * iterations


@MODES
@pytest.mark.parametrize("k_min", [12, WORKERS])
def test_workers_that_hang_do_not_stop_a_job_whose_bounds_ask_for_more_than_are_left(
    mode: SyncMode, k_min: int
) -> None:
    """Otherwise each iteration that ends at its deadline makes the next deadline later."""
    timeline = Timeline(WORKERS, "constant:1 * slowdown:1000000,from=20,workers=0-5", 0, mode)
    iterations = 400  # of one second, as long as no worker hangs
    decisions = train(new_job(mode, k_min=k_min), timeline, iterations, 0.001)
    assert timeline.now < 3.0 * iterations
    assert decisions[-1].k == k_min


@MODES
def test_workers_that_are_only_slow_are_waited_for_where_the_jobs_bounds_ask_for_them(mode: SyncMode) -> None:
    job, timeline = new_job(mode, k_min=WORKERS), Timeline(WORKERS, "constant:1 * slowdown:20,workers=0-3", 0, mode)
    for _ in range(60):
        report = timeline.report(job.decision().k, job.decision().deadline_seconds, **noise(0.001, job.iteration))
        job.report(report)
        assert report.summary is not None
        used = report.summary.k
    assert (used, job.decision().unbounded_k) == (WORKERS, 12)


@MODES
def test_the_number_of_workers_may_change_at_any_time(mode: SyncMode) -> None:
    job = new_job(mode)
    train(job, Timeline(WORKERS, "constant:1", 0, mode), 10, 100.0)
    for workers in (3, 24, 1, 16, 0, 16):
        job.report(Report(membership=Membership(workers)))
        job.begin(Membership(workers))
        timeline = Timeline(max(workers, 1), "constant:1", 0, mode)
        job.begin(Membership(workers), 0)
        for decision in train(job, timeline, 5, 100.0):
            assert decision.k == max(workers, 1)
