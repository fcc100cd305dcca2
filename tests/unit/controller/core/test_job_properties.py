"""Whatever a parameter server reports: decisions stay within bounds, and nothing but documented errors is raised."""

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbw_controller.core.errors import JobError, NotSupportedError, StateDamagedError, StateFormatUnknownError
from dbw_controller.core.estimators.durations import UnsampledDuration
from dbw_controller.core.job import Job
from dbw_controller.core.policies import POLICIES, Dbw, DbwPlus, create_policy
from dbw_controller.core.reports import Arrivals, EndCause, GradientMoments, IterationSummary, Membership, Report
from dbw_controller.core.spec import JobSpec, SyncMode
from dbw_controller.core.state import encode
from tests.states import opened

MOST_WORKERS = 6

numbers = st.none() | st.floats()
times = st.floats(0, 1e12) | st.just(0.0)
iterations = st.integers(0, 12) | st.integers(0, 2**62)
workers = st.integers(0, MOST_WORKERS + 2)
memberships = st.integers(0, MOST_WORKERS).map(Membership) | st.lists(workers, unique=True, max_size=MOST_WORKERS).map(
    lambda numbers: Membership(len(numbers), numbers)
)


@st.composite
def arrivals(draw: st.DrawFn) -> Arrivals:
    seconds = draw(st.lists(times, max_size=MOST_WORKERS + 2))
    any_of_them = st.lists(workers, min_size=len(seconds), max_size=len(seconds))
    numbers = draw(st.none() | st.just(np.arange(len(seconds))) | any_of_them)
    return Arrivals(draw(iterations), np.array(seconds), draw(st.integers(0, 8) | st.integers(0, 2**32)), numbers)


summaries = st.builds(
    IterationSummary,
    iteration=iterations,
    k=st.integers(1, MOST_WORKERS + 3),
    duration_seconds=times,
    loss=numbers,
    learning_rate=numbers,
    moments=st.none()
    | st.builds(GradientMoments, st.floats(), numbers, numbers, numbers, degrees_of_freedom=st.integers(0, 9)),
    previous_k=st.none() | st.integers(1, MOST_WORKERS + 3),
    end_cause=st.sampled_from(EndCause),
    fallback=st.booleans(),
    published_seconds=numbers,
)
reports = st.builds(Report, st.lists(arrivals(), max_size=3), st.none() | summaries, st.none() | memberships)
begins = st.tuples(memberships, st.none() | st.integers(0, 12))
events = st.one_of(reports, reports, reports, begins, st.sampled_from(["restart", "adopt"]))

specs = st.builds(
    JobSpec,
    policy=st.sampled_from(sorted(POLICIES)).map(
        lambda name: create_policy(name, {"k": 3} if name == "static" else {})
    ),
    k_min=st.integers(1, 3),
    k_max=st.none() | st.integers(3, 9),
    averaging_window=st.integers(1, 6),
    sample_half_life=st.none() | st.floats(0.001, 1e6),
    unsampled_duration=st.sampled_from(UnsampledDuration),
    sync_mode=st.sampled_from(SyncMode),
)


def assert_sound(job: Job) -> None:
    decision = job.decision()
    workers = max(job.membership.live_workers, 1)
    assert decision.iteration == job.iteration
    assert decision.k >= 1
    assert decision.k <= max(decision.live_workers, 1)
    assert decision.k <= (job.spec.k_max or decision.k)
    assert decision.k >= min(job.spec.k_min, max(decision.live_workers, 1))
    assert decision.estimates.explanation
    assert decision.deadline_seconds is None or 0.0 <= decision.deadline_seconds < np.inf
    seconds = job.durations.estimate().seconds
    assert len(seconds) >= workers
    assert (np.diff(seconds[~np.isnan(seconds)]) >= 0).all()


@given(specs, memberships, st.none() | st.integers(0, 12), st.lists(events, max_size=15))
@settings(max_examples=400)
def test_no_sequence_of_events_breaks_a_job(
    spec: JobSpec, membership: Membership, iteration: int | None, sequence: list[Any]
) -> None:
    job = Job(spec, membership, iteration)
    for event in sequence:
        before = job.decision()
        if event == "restart":
            state = job.snapshot()
            job = Job.restore(state)
            assert job.snapshot() == state
        elif event == "adopt":
            job.adopt(job.learnt())
        elif isinstance(event, Report):
            try:
                decision = job.report(event)
            except JobError:
                assert job.decision() is before
                continue
            assert (decision is None) == (event.summary is None)
            if event.summary is not None:
                once = job.snapshot()
                assert job.report(event) is decision
                assert job.snapshot() == once  # nothing counts twice
        else:
            job.begin(*event)
        assert_sound(job)


def leaves(state: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values in plain data."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    return [path, *(leaf for key, value in items for leaf in leaves(value, (*path, key)))]


def changed(state: dict[str, Any], path: tuple[Any, ...], value: Any) -> bytes:
    result = copy.deepcopy(state)
    target = result
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return encode(result)


SPECS = [
    JobSpec(Dbw(), sample_half_life=5.0),
    JobSpec(DbwPlus()),
    JobSpec(DbwPlus(), sync_mode=SyncMode.PUSH_INTERRUPT),
]


def trained_job(spec: JobSpec) -> Job:
    job = Job(spec, Membership(3))
    for iteration in range(4):
        moments = GradientMoments(1.0, sum_squared_norms=9.0)
        arrival = Arrivals(iteration, np.array([1.0, 2.0, 3.0]), workers=[0, 1, 2])
        job.report(Report([arrival], IterationSummary(iteration, 3, 3.0, 2.0 - iteration / 9, 0.1, moments)))
    job.report(Report([Arrivals(7, np.array([1.0]))]))
    return job


SNAPSHOTS = [opened(trained_job(spec).snapshot()) for spec in SPECS]
NONSENSE: st.SearchStrategy[Any] = st.sampled_from(
    [None, -1, 3.5, 2**64 - 1, float("nan"), float("inf"), "x", b"x", b"", [], {}, [[]], True]
)


@given(st.sampled_from([(state, path) for state in SNAPSHOTS for path in leaves(state)[1:]]), NONSENSE)
@settings(max_examples=1000)
def test_a_state_with_nonsense_in_it_is_refused_or_does_no_harm(
    place: tuple[dict[str, Any], tuple[Any, ...]], value: Any
) -> None:
    state, path = place
    try:
        job = Job.restore(changed(state, path, value))
    except (StateDamagedError, StateFormatUnknownError):
        return
    except NotSupportedError:
        assert path == ("spec", "policy")
        return
    assert_goes_on(job)


def assert_goes_on(job: Job) -> None:
    for iteration in range(job.iteration, job.iteration + 2):
        arrivals = Arrivals(iteration, np.array([1.0, 2.0]), workers=[0, 1])
        assert job.report(Report([arrivals], IterationSummary(iteration, 2, 2.0, 1.0))) is not None
    assert_sound(Job.restore(job.snapshot()))


@given(st.sampled_from([(i, path) for i in range(len(SPECS)) for path in leaves(SNAPSHOTS[i]["learnt"])[1:]]), NONSENSE)
@settings(max_examples=500)
def test_nonsense_is_not_adopted_or_does_no_harm(place: tuple[int, tuple[Any, ...]], value: Any) -> None:
    which, path = place
    job = trained_job(SPECS[which])
    try:
        job.adopt(changed(SNAPSHOTS[which]["learnt"], path, value))
    except (StateDamagedError, StateFormatUnknownError):
        assert opened(job.snapshot()) == SNAPSHOTS[which]
        return
    assert_goes_on(job)


def test_a_state_that_is_no_state_is_refused() -> None:
    states: list[Any] = [{}, {"version": 1}, []]
    for state in (*map(encode, states), b"", b"nonsense", encode(states)[:-1]):
        with pytest.raises(StateDamagedError):
            Job.restore(state)
