"""Which runs are computed together. That a bundle's outcomes are those of its runs, see test_training.py."""

from io import StringIO

import pytest
from msgspec.structs import replace
from rich.console import Console

from dbw_experiments.laboratory.runner import bundles, progress_bar
from dbw_experiments.laboratory.runs import Run
from dbw_experiments.laboratory.scenario import load_scenario, names

RUN = Run(model="mlp", dataset="digits", workers=4, batch=8, policy="static:2", rate=0.1, delay="exp:1", seed=0)
INDIFFERENT = pytest.mark.parametrize("policy", ["static:2", "sync", "adasync"])
TIMED = pytest.mark.parametrize("policy", ["dbw", "b-dbw"])


def variants(run: Run) -> list[Run]:
    """Runs that learn the same, if time does not matter to them."""
    return [
        run,
        replace(run, delay="constant:1"),
        replace(run, case="α = 1"),
        replace(run, rule="largest"),
        replace(run, sync_mode="push-interrupt"),
    ]


@INDIFFERENT
def test_runs_are_together_that_differ_in_delay_case_rule_or_synchronisation_only(policy: str) -> None:
    runs = variants(replace(RUN, policy=policy))
    assert bundles(runs) == [runs]


@TIMED
def test_each_run_is_alone_whose_policy_looks_at_times(policy: str) -> None:
    runs = variants(replace(RUN, policy=policy))
    assert bundles(runs) == [[run] for run in runs]


@INDIFFERENT
def test_each_run_is_alone_where_data_are_split(policy: str) -> None:
    """Whose gradient is first then matters."""
    for split in (True, "by-label"):
        runs = variants(replace(RUN, policy=policy, split=split))
        assert bundles(runs) == [[run] for run in runs]


@INDIFFERENT
def test_each_run_is_alone_where_workers_come_and_go(policy: str) -> None:
    """How many gradients an iteration has then depends on when it is."""
    runs = variants(replace(RUN, policy=policy, membership="0@9"))
    assert bundles(runs) == [[run] for run in runs]


OTHERS = [
    replace(RUN, model="mnist-cnn-small"),
    replace(RUN, dataset="mnist"),
    replace(RUN, workers=5),
    replace(RUN, batch=9),
    replace(RUN, policy="static:3"),
    replace(RUN, rate=0.2),
    replace(RUN, seed=1),
    replace(RUN, rate_exponent=0.5),
    replace(RUN, optimizer="sgd:momentum=0.9"),
    replace(RUN, schedule="steplr:step_size=9"),
    replace(RUN, membership="0@9"),
    replace(RUN, split=True),
    replace(RUN, split="by-label"),
    replace(RUN, label_noise=0.1),
    replace(RUN, target_loss=0.5),
    replace(RUN, target_every=5),
    replace(RUN, iterations=9),
    replace(RUN, seconds=9.0),
    replace(RUN, detail="curves"),
    replace(RUN, accuracy_every=1),
    replace(RUN, exact_every=1),
    replace(RUN, half_life=9.0),
    replace(RUN, files="a digest"),
]


def differences(other: Run) -> list[str]:
    return [name for name in Run.__struct_fields__ if getattr(RUN, name) != getattr(other, name)]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: ", ".join(differences(other)))
def test_runs_are_not_together_that_differ_in_anything_else(other: Run) -> None:
    assert bundles([RUN, other, replace(RUN, delay="constant:1")]) == [[RUN, replace(RUN, delay="constant:1")], [other]]


def test_all_that_may_differ_was_tried() -> None:
    tried = {name for other in OTHERS for name in differences(other)}
    assert tried | {"case", "delay", "rule", "sync_mode"} == set(Run.__struct_fields__)


def test_the_first_seed_of_everything_comes_before_the_second_of_anything() -> None:
    runs = [
        replace(RUN, policy=policy, delay=delay, seed=seed)
        for delay in ("exp:1", "constant:1")
        for policy in ("dbw", "static:1", "static:2")
        for seed in (0, 1, 2)
    ]
    found = bundles(runs)
    assert [{run.seed for run in bundle} for bundle in found] == [{0}] * 4 + [{1}] * 4 + [{2}] * 4
    for begin in (0, 4, 8):
        shown = [
            [run.policy, *(run.delay for run in bundle)] for bundle in found[begin : begin + 4] for run in bundle[:1]
        ]
        assert shown == [
            ["dbw", "exp:1"],
            ["static:1", "exp:1", "constant:1"],
            ["static:2", "exp:1", "constant:1"],
            ["dbw", "constant:1"],
        ]


@pytest.mark.parametrize("name", names())
def test_no_run_of_a_scenario_is_lost_or_computed_twice(name: str) -> None:
    runs = load_scenario(name).runs()
    computed = [run for bundle in bundles(runs) for run in bundle]
    assert len(computed) == len(runs)
    assert set(computed) == set(runs)


def test_nothing_is_in_no_bundle() -> None:
    assert bundles([]) == []


def test_the_time_left_is_told_though_results_are_minutes_apart() -> None:
    now = 0.0
    bar = progress_bar(Console(file=StringIO()), lambda: now)
    bar.add_task("runs", total=10)
    (task,) = bar.tasks
    for _ in range(4):
        now += 300
        bar.advance(task.id)
    assert task.time_remaining == pytest.approx(6 * 300, rel=0.01)
