import numpy as np
import pytest

from dbw_controller.core.diagnosis import Diagnosis, FindingKind
from dbw_controller.core.policies import BlindDbw, Dbw, Policy, Sync
from tests.jobs import full_report, new_job
from tests.unit.controller.core.diagnosis.server import Server, changed_summary, observe


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("policy", "workers"), [(Dbw(), 4), (Dbw(), 16), (BlindDbw(), 16)], ids=repr)
def test_a_loss_that_is_a_sum_is_found(policy: Policy, workers: int, seed: int) -> None:
    change = changed_summary(lambda s: {"loss": s.k * (s.loss or 0.0)})
    assert Server(workers, policy, seed, change=change).run(400).kinds == [FindingKind.LOSS_IS_A_SUM]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("is_sum", [False, True])
def test_a_noisy_loss_is_taken_for_a_sum_only_if_it_is_one(is_sum: bool, seed: int) -> None:
    job, diagnosis, rng = new_job(6, policy=Sync()), Diagnosis(), np.random.default_rng(seed)
    for t in range(120):
        k = int(rng.integers(1, 7))
        loss = np.exp(-0.005 * t) * rng.gamma(8.0, 1 / 8, k).mean()  # one worker's deviates by a third
        report = full_report(t, k, fallback=True, loss=loss * (k if is_sum else 1), moments=None)
        observe(job, diagnosis, report)
    assert (FindingKind.LOSS_IS_A_SUM in {finding.kind for finding in diagnosis.findings()}) == is_sum


def test_a_falling_loss_while_k_falls_is_no_sum() -> None:
    job, diagnosis = new_job(64, policy=Sync()), Diagnosis()
    ks = [64, 4, *([5, 4] * 100)]
    rng = np.random.default_rng(0)
    for t, (k, loss) in enumerate(zip(ks, [100.0, 6.0, *([5.0] * 200)], strict=True)):
        observe(job, diagnosis, full_report(t, k, fallback=True, loss=loss * np.exp(0.1 * rng.normal()), moments=None))
    assert FindingKind.LOSS_IS_A_SUM not in {finding.kind for finding in diagnosis.findings()}
