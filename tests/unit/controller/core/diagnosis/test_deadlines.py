"""Parameter servers that end iterations at their deadlines, and such that do not."""

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from msgspec.structs import replace

from dbw_controller.core.diagnosis import Diagnosis, Finding, FindingKind
from dbw_controller.core.diagnosis.deadlines import IGNORED_FACTOR
from dbw_controller.core.job import Job
from dbw_controller.core.policies import DbwPlus
from dbw_controller.core.reports import Arrivals, EndCause, IterationSummary, Membership, Report
from dbw_controller.core.spec import JobSpec
from tests.cluster import Array, RoundTrips, exponential, shifted_exponential
from tests.unit.controller.core.diagnosis.server import Server, observe, told

WORKERS = 8
IGNORED = [FindingKind.DEADLINE_IGNORED]


def hanging() -> RoundTrips:
    """All workers but the first hang for a while, now and then: so rarely that it is never usual."""
    iteration = count(1)

    def draw(rng: np.random.Generator, workers: int) -> Array:
        seconds = shifted_exponential(rng, workers)
        if next(iteration) % 40 == 0:
            seconds[1:] += 1000.0
        return seconds

    return draw


def server(respects_deadlines: bool, round_trips: RoundTrips, seed: int = 0, delay: int = 0) -> Server:
    server = Server(WORKERS, DbwPlus(), seed, round_trips, k_min=4, change=told(loss=1.0), delay=delay)
    server.respects_deadlines = respects_deadlines
    return server


@pytest.mark.parametrize("delay", [0, 1])
def test_ignored_deadlines_are_found(delay: int) -> None:
    ignoring = server(respects_deadlines=False, round_trips=hanging(), delay=delay).run(125)
    assert ignoring.kinds == IGNORED
    assert "End the iteration at `deadline_seconds`" in ignoring.findings[0].message


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_one_that_respects_deadlines_has_no_finding_though_workers_hang(seed: int, delay: int) -> None:
    respecting = server(respects_deadlines=True, round_trips=hanging(), seed=seed, delay=delay).run(125)
    assert respecting.findings == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("round_trips", [exponential, shifted_exponential])
@pytest.mark.parametrize("respects_deadlines", [False, True])
def test_where_no_worker_hangs_ignored_deadlines_cost_nothing_and_are_no_finding(
    seed: int, round_trips: RoundTrips, respects_deadlines: bool
) -> None:
    assert server(respects_deadlines, round_trips, seed).run(300).findings == []


DEADLINE, LONG = 1.0, 1.1 * IGNORED_FACTOR


def found(
    *ended: tuple[tuple[float, ...], float, EndCause], change: Callable[[Report], Report] = lambda report: report
) -> list[Finding]:
    """What is found in iterations whose decisions have a deadline of a second: arrivals, duration, cause."""
    job, diagnosis = Job(JobSpec(DbwPlus()), Membership(3, [0, 1, 2])), Diagnosis()
    for t, (seconds, duration, cause) in enumerate([*ended, ((0.5,), 0.5, EndCause.K_REACHED)]):
        job._decisions[t] = replace(job.decision(), k=3, deadline_seconds=DEADLINE)
        arrivals = Arrivals(t, np.array(seconds), workers=range(len(seconds)))
        summary = IterationSummary(t, len(seconds), duration, end_cause=cause)
        observe(job, diagnosis, change(Report([arrivals], summary)))
    return [finding for finding in diagnosis.findings() if finding.kind in IGNORED]


WAITED = ((0.1, 0.2, LONG), LONG, EndCause.K_REACHED)


@pytest.mark.parametrize(
    "ended",
    [
        WAITED,
        ((0.1, LONG), LONG, EndCause.NO_MORE_EXPECTED),
        ((0.1, LONG), LONG, EndCause.MAX_WAIT),
        ((0.1, LONG), LONG, EndCause.DEADLINE),  # it is looked at only when a gradient arrives
    ],
)
def test_it_does_not_matter_why_an_iteration_ended_long_after_its_deadline(
    ended: tuple[tuple[float, ...], float, EndCause],
) -> None:
    (finding,) = found(ended, ended)
    assert (finding.iterations, finding.last_iteration) == (2, 1)


@pytest.mark.parametrize(
    "ended",
    [
        ((LONG,), LONG, EndCause.DEADLINE),  # the first gradient is always waited for
        ((LONG, LONG, LONG), LONG, EndCause.K_REACHED),  # what arrives with the first one may count
        ((0.1, 0.2, 1.5), 1.5, EndCause.K_REACHED),  # by a parameter server that is busy
        ((0.1, 0.2, 0.3), 0.3, EndCause.K_REACHED),
        ((0.1, 0.2), 1.0, EndCause.DEADLINE),
    ],
)
def test_a_deadline_that_is_respected_is_no_finding(ended: tuple[tuple[float, ...], float, EndCause]) -> None:
    assert found(*[ended] * 20) == []


def test_once_may_be_an_accident() -> None:
    assert found(WAITED) == []


def test_a_parameter_server_that_respects_some_deadlines_knows_of_them() -> None:
    assert found(((0.1,), DEADLINE, EndCause.DEADLINE), WAITED, WAITED, WAITED) == []


def test_the_deadline_is_that_of_the_earlier_decision_in_use() -> None:
    def late(report: Report) -> Report:
        assert report.summary is not None
        earlier = max(report.summary.iteration - 1, 0)
        return replace(report, summary=replace(report.summary, decision_iteration=earlier))

    (finding,) = found(WAITED, WAITED, change=late)
    assert finding.iterations == 2


def test_a_deadline_of_a_decision_that_is_not_in_use_is_not_ignored() -> None:
    assert found(WAITED, WAITED, WAITED, change=told(fallback=True)) == []
