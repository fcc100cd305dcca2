"""A parameter server in Node.js, which runs a whole job against a real controller."""

import numpy as np

from dbw.v1.iteration_pb2 import DecisionReason
from dbw_controller.core.job import Job
from dbw_controller.core.policies import Dbw
from dbw_controller.core.reports import Arrivals, GradientMoments, IterationSummary, Membership, Report
from dbw_controller.core.spec import JobSpec
from tests.contract import PROTOS
from tests.node import needs_node, run_node
from tests.servers import controller


@needs_node
def test_a_training_in_node_gets_the_decisions_that_the_algorithm_makes_in_process() -> None:
    rng = np.random.default_rng(0)
    times = np.sort(0.3 + rng.exponential(0.7, (40, 6)), axis=1)
    job, expected = Job(JobSpec(Dbw()), Membership(6)), []
    for iteration, seconds in enumerate(times):
        k = job.decision().k
        moments = GradientMoments(2.0, sum_squared_norms=3.0 * k)
        summary = IterationSummary(iteration, k, seconds[k - 1], 2 * 0.99**iteration, 0.1, moments)
        decision = job.report(Report([Arrivals(iteration, seconds, workers=np.arange(6))], summary))
        assert decision is not None
        reason = f"DECISION_REASON_{decision.reason.name}"
        assert reason in DecisionReason.keys()  # noqa: SIM118 (an enum wrapper, no dictionary)
        expected.append({"iteration": iteration + 1, "k": decision.k, "reason": reason})
    with controller() as server:
        request = {"protos": str(PROTOS), "target": server.target, "job": "node", "iterations": times.tolist()}
        seen = run_node("train.mjs", request)
        server.wait_for_log("deleted", job="node", learnt_iterations=40)
    assert seen["decisions"] == expected
    assert seen["refused"] == {
        "code": 5,
        "details": "there is no job 'nobody' that you may use; a parameter server creates it, with CreateJob",
    }
    assert len({decision["k"] for decision in expected}) > 1, "there was something to decide"
