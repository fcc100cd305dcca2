"""A healthy parameter server has no findings, in whatever way it reports."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dbw_controller.core.diagnosis import FindingKind
from dbw_controller.core.policies import Policy, Sync
from dbw_controller.core.reports import Arrivals, Report
from dbw_controller.core.spec import SyncMode
from tests.cluster import Array, RoundTrips, exponential, shifted_exponential
from tests.unit.controller.core.diagnosis.server import POLICIES, Server, told


def nearly_equal(rng: np.random.Generator, count: int) -> Array:
    return 1.0 + rng.normal(0.0, 1e-3, count)


def always_equal(_rng: np.random.Generator, count: int) -> Array:
    return np.ones(count)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("published", [False, True])
def test_a_healthy_job_has_no_findings(policy: Policy, workers: int, published: bool) -> None:
    server = Server(workers, policy, seed=workers, publishes=published).run(120 if workers == 64 else 300)
    assert server.findings == []
    assert server.diagnosis.iterations == server.iteration


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("round_trips", [exponential, shifted_exponential, nearly_equal, always_equal])
def test_whatever_the_round_trips_a_healthy_job_has_no_findings(seed: int, round_trips: RoundTrips) -> None:
    options: dict[str, Any] = {"numbers": seed % 2 == 0, "publishes": seed % 4 < 2}
    assert Server(5, POLICIES[seed // 4], seed, round_trips, **options).run().findings == []


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("splits", [False, True])
def test_repeated_reports_count_once(policy: Policy, splits: bool) -> None:
    server = Server(policy=policy, repeats=True, splits=splits).run()
    assert server.findings == []
    assert server.diagnosis.iterations == 300


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("delay", [1, 3])
def test_decisions_may_come_late(policy: Policy, delay: int) -> None:
    assert Server(policy=policy, delay=delay).run().findings == []


@pytest.mark.parametrize("delay", [1, 3])
def test_workers_may_come_and_go_while_decisions_come_late(delay: int) -> None:
    server = Server(8, Sync(), delay=delay)
    for iteration in range(100):
        server.step(server.replace_workers(6 + iteration % 3))
        server.run(2)
    assert server.findings == []


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_where_workers_interrupt_themselves_nobody_is_late(policy: Policy) -> None:
    assert Server(policy=policy, sync_mode=SyncMode.PUSH_INTERRUPT).run().findings == []


@pytest.mark.parametrize("seed", range(5))
def test_reports_and_answers_may_get_lost(seed: int) -> None:
    server = Server(8, seed=seed)
    for _ in range(300):
        lost = server.rng.random() < 0.3
        server.answer = replace(server.answer, k=int(server.rng.integers(1, 9))) if lost else server.answer
        server.step(sent=server.rng.random() < 0.8, fallback=lost)
        if server.iteration > server.job.iteration:  # the next decision is for another iteration: it has a k of its own
            server.step(fallback=True)
    assert server.findings == []


def test_a_job_that_begins_in_the_middle_has_no_findings() -> None:
    server = Server()
    server.iteration = 1000  # the job's is 0: it does not know
    server.step(fallback=True)
    assert server.run().findings == []


@pytest.mark.parametrize("iteration", [0, 40, 49, 50, 70])
def test_a_parameter_server_may_begin_anew_from_a_checkpoint(iteration: int) -> None:
    server = Server().run(50)
    for _ in range(10):
        server.send(Report([Arrivals(server.iteration, np.array([0.1, 0.2]))]))  # then it broke off
        server.answer = server.job.begin(server.membership(), iteration)
        server.iteration, server.clock, server.late = iteration, 7.0, []
        server.cluster = server.new_cluster()
        assert server.run(50).findings == []
    server.change = told(loss=None)
    assert server.run(10).kinds == [FindingKind.INPUT_MISSING]
