from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from dbw_controller.core.diagnosis import Diagnosis, FindingKind
from dbw_controller.core.policies import Dbw, Policy, Static, Sync
from dbw_controller.core.reports import EndCause, GradientMoments, IterationSummary
from tests.jobs import full_report, new_job
from tests.unit.controller.core.diagnosis.server import Change, Server, changed_summary, observe, told


def test_a_diverging_training_is_no_mistake() -> None:
    nan = float("nan")
    diverged: dict[str, Any] = {"loss": nan, "moments": GradientMoments(nan, sum_squared_norms=float("inf"))}
    assert Server(change=told(**diverged)).run(50).findings == []


def test_rounding_is_no_mistake() -> None:
    change = changed_summary(lambda s: {"moments": GradientMoments(1.0005, sum_squared_norms=float(s.k))})
    assert Server(change=change).run(50).findings == []


def moments_of(mean: Callable[[int, float], float], squares: Callable[[float], float]) -> Change:
    def change(summary: IterationSummary) -> dict[str, Any]:
        true = summary.moments
        assert true is not None
        assert true.sum_squared_norms is not None
        return {"moments": GradientMoments(mean(summary.k, true.mean_squared_norm), squares(true.sum_squared_norms))}

    return changed_summary(change)


def test_a_norm_of_the_sum_is_found_and_named() -> None:
    server = Server(policy=Static(4), change=moments_of(lambda k, mean: k * k * mean, lambda squares: squares)).run(6)
    assert server.kinds == [FindingKind.MOMENTS_IMPOSSIBLE]
    assert "divide that by k" in server.findings[0].message


def test_norms_that_are_not_squared_are_found() -> None:
    # The gradients are 100 times as large, and Σ‖g‖ is reported.
    change = moments_of(lambda _, mean: 1e4 * mean, lambda squares: 1e2 * squares**0.5)
    server = Server(policy=Static(4), change=change).run(6)
    assert server.kinds == [FindingKind.MOMENTS_IMPOSSIBLE]
    assert "divide" not in server.findings[0].message
    assert "not squared" in server.findings[0].message


@pytest.mark.parametrize(
    "moments",
    [
        GradientMoments(-1.0, sum_squared_norms=1.0),
        GradientMoments(1.0, variance=-1.0),
        GradientMoments(1.0, 9.0, within_worker_variance=-1.0, degrees_of_freedom=2),
    ],
)
def test_negative_moments_are_found(moments: GradientMoments) -> None:
    server = Server(policy=Static(4), change=told(moments=moments)).run(6)
    assert server.kinds == [FindingKind.MOMENTS_IMPOSSIBLE]
    assert "negative" in server.findings[0].message


@pytest.mark.parametrize("name", ["loss", "learning_rate", "moments"])
def test_missing_input_is_found_and_named(name: str) -> None:
    server = Server(change=told(**{name: None})).run(6)
    assert server.kinds == [FindingKind.INPUT_MISSING]
    assert name.replace("_", " ") in server.findings[0].message
    assert server.findings[0].iterations == 5


def test_what_the_policy_does_not_need_is_not_missing() -> None:
    change = told(loss=None, moments=None, learning_rate=None)
    assert Server(policy=Static(3), change=change).run().findings == []


def test_waiting_for_those_that_are_left_respects_k() -> None:
    server = Server(4, Sync())
    for _ in range(30):
        server.step(server.replace_workers(3))
        server.step(server.replace_workers(4))
    assert server.findings == []


@pytest.mark.parametrize("cause", [EndCause.NO_MORE_EXPECTED, EndCause.DEADLINE, EndCause.MAX_WAIT])
def test_an_iteration_may_end_with_fewer_gradients_for_a_cause(cause: EndCause) -> None:
    job, diagnosis = new_job(policy=Sync()), Diagnosis()
    for t in range(200):
        observe(
            job, diagnosis, full_report(t, 3, (1.0, 1.1, 1.2), duration_seconds=2.0, end_cause=cause, lost_gradients=1)
        )
    assert diagnosis.findings() == []


@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.parametrize("policy", [Static(3), Dbw(), Sync()], ids=repr)
def test_a_k_that_is_not_the_decided_one_is_found(policy: Policy, delay: int) -> None:
    server = Server(policy=policy, delay=delay)
    for _ in range(50):
        server.answer = replace(server.answer, k=1 + server.answer.k % 8)
        server.step()
    assert server.kinds == [FindingKind.K_NOT_RESPECTED]


def test_a_k_of_a_decision_that_is_not_known_is_no_mistake() -> None:
    server = Server(policy=Static(3))
    server.iteration = 1000  # the job's is 0: it has decided for none of those before
    for iteration in range(50):
        server.answer = replace(server.answer, k=1 + iteration % 8)
        server.step(decision_iteration=900)
    assert server.findings == []


def test_a_single_other_k_may_be_due_to_an_import() -> None:
    server = Server(policy=Static(3)).run(10)
    server.answer = replace(server.answer, k=4)
    assert server.run(10).findings == []
