"""What is said about results, on results that are made by hand."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from msgspec.structs import replace

from dbw_experiments.laboratory.analysis import findings
from dbw_experiments.laboratory.analysis.findings import DurationErrors, Findings, mean_and_deviation
from dbw_experiments.laboratory.pages import page
from dbw_experiments.laboratory.results import Results
from dbw_experiments.laboratory.runs import Column, Outcome, Record, Run
from dbw_experiments.laboratory.scenario import Scenario, ScenarioError, load_scenario

NAME, CASE = "round-trip-times", "α = 1"
Key = tuple[str, str, int]  # policy, rule, seed


def outcome(reached: float | None, columns: dict[str, Column] | None = None) -> Outcome:
    return Outcome(reached=reached, iterations=4, gradients=40, seconds=99.0, loss=0.2, columns=columns or {})


def reaching(policy: str, rule: str, times: Iterable[float | None]) -> dict[Key, float | None]:
    """When each seed reached the target, seed by seed."""
    return {(policy, rule, seed): time for seed, time in enumerate(times)}


class Written(Protocol):
    """Writes what came of some runs of one case, and tells what is found in it."""

    def __call__(self, *times: dict[Key, float | None]) -> Findings: ...


def with_five_seeds(name: str) -> Scenario:
    """A scenario, of which each policy has five."""
    scenario = load_scenario(name)
    cases = [
        replace(case, seeds=5, compare=[replace(compared, seeds=None) for compared in case.compare])
        for case in scenario.cases
    ]
    return replace(scenario, cases=cases)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    monkeypatch.setattr(findings, "load_scenario", with_five_seeds)

    def write(*times: dict[Key, float | None]) -> Findings:
        wanted = {key: time for some in times for key, time in some.items()}
        there = {(run.policy, run.rule, run.seed): run for run in with_five_seeds(NAME).runs() if run.case == CASE}
        Results(tmp_path / NAME / "runs.jsonl").add(Record(there[key], outcome(time)) for key, time in wanted.items())
        return Findings(NAME, tmp_path)

    return write


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "–"),
        ([123.456], "123"),
        ([12.3456], "12.3"),
        ([1.23456], "1.23"),
        ([0.0123456], "0.0123"),
        ([98765.4], "98765"),
        ([-1.5], "-1.50"),
        ([0.0], "0"),
        ([100.0, 110.0, 120.0], "110 ± 10"),
        ([1.0, 2.0], "1.50 ± 0.71"),  # √0.5
        ([2.0, 2.0], "2.00 ± 0.00"),
    ],
)
def test_a_spread_has_three_digits_of_its_mean_and_as_many_decimals_of_its_deviation(
    values: Sequence[float], text: str
) -> None:
    assert mean_and_deviation(values) == text


def test_it_is_known_how_many_results_are_missing(written: Written) -> None:
    wanted = len(with_five_seeds(NAME).runs())
    assert written().missing == wanted
    assert written(reaching("dbw", "largest", [1.0, 2.0])).missing == wanted - 2


def test_results_of_other_runs_are_not_counted(tmp_path: Path) -> None:
    stray = Run(model="mlp", dataset="digits", workers=4, batch=8, policy="dbw", rate=0.1, delay="exp:1", seed=0)
    Results(tmp_path / NAME / "runs.jsonl").add([Record(stray, outcome(1.0))])
    found = Findings(NAME, tmp_path)
    assert found.records == []
    assert found.missing == len(load_scenario(NAME).runs())


def test_times_are_those_of_a_policy_and_a_rule_in_a_case(written: Written) -> None:
    found = written(
        reaching("dbw", "largest", [100.0, 120.0]),
        reaching("static:8", "largest", [50.0]),
        reaching("static:8", "proportional", [200.0, 210.0, 220.0]),
    )
    assert found.spread(CASE, "dbw") == "110 ± 14 s"
    assert found.spread(CASE, "static:8", "largest") == "50.0 s"
    assert found.spread(CASE, "static:8", "proportional") == "210 ± 10 s"
    assert (found.seeds(CASE, "dbw"), found.seeds(CASE, "static:8")) == (2, 4)
    assert found.seeds("α = 0", "dbw") == 0


def test_runs_that_never_reached_the_target_are_told_beside_the_mean_of_the_others(written: Written) -> None:
    found = written(reaching("dbw", "largest", [100.0, None, 120.0, None]), reaching("b-dbw", "largest", [None, None]))
    assert found.spread(CASE, "dbw") == "110 ± 14 s (2 of 4 never)"
    assert found.spread(CASE, "b-dbw") == "2 of 2 never"


def test_the_best_static_k_has_the_smallest_mean_of_those_with_the_same_rule(written: Written) -> None:
    found = written(
        reaching("dbw", "largest", [1.0, 1.0, 1.0]),
        reaching("static:4", "proportional", [80.0, 120.0, 100.0]),
        reaching("static:8", "proportional", [99.0, 99.0, 99.0]),
        reaching("static:12", "proportional", [101.0, 90.0, 120.0]),
        reaching("static:4", "largest", [5.0, 5.0]),
    )
    assert found.best(CASE, "proportional") == 8
    assert found.best(CASE, "largest") == 4


def test_the_best_static_k_is_judged_by_the_seeds_that_all_k_have(written: Written) -> None:
    """K = 8 has three seeds, whose third is so slow that its mean would be 106."""
    found = written(
        reaching("static:4", "proportional", [100.0, 100.0]), reaching("static:8", "proportional", [99.0, 99.0, 120.0])
    )
    assert found.best(CASE, "proportional") == 8
    assert found.spread(CASE, "static:8", "proportional") == "106 ± 12 s"  # though all are told


def test_a_k_that_does_not_always_reach_the_target_is_not_the_best(written: Written) -> None:
    found = written(
        reaching("static:1", "proportional", [1.0, None, 1.0]), reaching("static:2", "proportional", [50.0, 60.0, 70.0])
    )
    assert found.best(CASE, "proportional") == 2


def test_of_k_that_never_all_reach_the_target_the_best_does_so_most_often(written: Written) -> None:
    found = written(
        reaching("static:8", "proportional", [None, None, None]),
        reaching("static:4", "proportional", [100.0, 90.0, None]),
    )
    assert found.best(CASE, "proportional") == 4


def test_a_speed_up_is_the_ratio_of_means_with_the_range_of_each_common_seed(written: Written) -> None:
    """Of the seeds 0 and 1, that both have: 300 / 200, between 100 / 80 and 200 / 120."""
    found = written(
        reaching("dbw", "largest", [80.0, 120.0, 1000.0]), reaching("static:8", "proportional", [100.0, 200.0])
    )
    assert found.speed_up(CASE, "dbw", "static:8", "proportional") == "1.50× (1.25 to 1.67; 2 seeds)"
    assert found.speed_up(CASE, "static:8", "dbw", "largest") == "0.67× (0.60 to 0.80; 2 seeds)"


def test_there_is_no_speed_up_if_either_did_not_always_reach_the_target(written: Written) -> None:
    found = written(
        reaching("dbw", "largest", [80.0, None]),
        reaching("b-dbw", "largest", [100.0]),
        reaching("static:8", "proportional", [100.0, 100.0]),
        reaching("static:9", "proportional", [None]),
    )
    assert found.speed_up(CASE, "dbw", "static:8", "proportional") == "–"
    assert found.speed_up(CASE, "static:8", "dbw", "largest") == "–"
    assert found.speed_up(CASE, "dbw", "static:9", "proportional") == "–"
    assert found.speed_up(CASE, "dbw", "static:10", "proportional") == "–"  # of which nothing is known
    assert found.speed_up(CASE, "dbw", "b-dbw", "largest") == "1.25× (1.25 to 1.25; 1 seeds)"


@pytest.mark.parametrize(
    ("fast", "text"),
    [
        ([], "none"),
        ([3], "3"),
        ([1, 2, 3, 4], "1 to 4"),
        ([1, 2, 3, 4, 6], "1 to 4 and 6"),
        ([2, 5, 6, 9, 15, 16], "2 and 5 to 6 and 9 and 15 to 16"),
    ],
)
def test_the_k_that_are_faster_than_a_policy_are_told_as_ranges(
    written: Written, fast: Sequence[int], text: str
) -> None:
    statics = [reaching(f"static:{k}", "largest", [90.0 if k in fast else 110.0] * 2) for k in range(1, 17)]
    found = written(reaching("dbw", "largest", [100.0, 100.0]), *statics)
    assert found.faster(CASE, "largest", "dbw") == text


def test_who_is_faster_is_so_with_every_seed_that_both_have(written: Written) -> None:
    """Seed by seed, k = 1 is ahead by 10 and 5, k = 2 by 10 and -5, k = 3 is as fast."""
    found = written(
        reaching("dbw", "largest", [100.0, 200.0]),
        reaching("static:1", "proportional", [90.0, 195.0, 9000.0]),
        reaching("static:2", "proportional", [90.0, 205.0, 1.0]),
        reaching("static:3", "proportional", [100.0, 200.0]),
        reaching("static:4", "largest", [1.0, 1.0]),
    )
    assert found.faster(CASE, "proportional", "dbw") == "1"


Curves = Callable[[str, dict[str, Column]], Findings]


@pytest.fixture
def curves(tmp_path: Path) -> Curves:
    """Writes what came of DBW's first run in a scenario, of each iteration."""

    def write(name: str, columns: dict[str, Column]) -> Findings:
        run = next(run for run in load_scenario(name).runs() if run.policy == "dbw")
        Results(tmp_path / name / "runs.jsonl").add([Record(run, outcome(None, columns))])
        return Findings(name, tmp_path)

    return write


def test_the_usual_k_are_the_three_most_frequent_with_their_shares(curves: Curves) -> None:
    found = curves("one-run", {"k": [1, 1, 2, 16, 16, 16, 16, 16, 8, 4]})
    assert found.usual_k("dbw") == "16 (50 %), 1 (20 %), 2 (10 %)"
    assert found.usual_k("dbw", 0, 3) == "1 (67 %), 2 (33 %)"
    assert found.usual_k("dbw", -2) == "8 (50 %), 4 (50 %)"
    assert found.mean_k("dbw") == "9.6"
    assert found.mean_k("dbw", 0, 3) == "1.3"


def test_the_usual_k_in_some_seconds_are_those_of_iterations_that_ended_in_them(curves: Curves) -> None:
    found = curves("slowdown", {"k": [16, 16, 12, 12, 8, 8, 8], "seconds": [100, 160, 161.5, 200, 200.5, 300, 400]})
    assert found.usual_k_between("dbw", 0, 160) == "16 (100 %)"
    assert found.usual_k_between("dbw", 160, 200) == "12 (100 %)"
    assert found.usual_k_between("dbw", 160, 300) == "12 (50 %), 8 (50 %)"
    assert found.usual_k_between("dbw", 200, 400) == "8 (100 %)"


def test_it_is_found_when_an_iteration_first_began_with_a_small_k(curves: Curves) -> None:
    found = curves("slowdown", {"k": [8, 16, 12, 7, 8], "seconds": [100, 160, 165, 172, 180]})
    assert found.first_k_at_most("dbw", 12, after=150) == 160
    assert found.first_k_at_most("dbw", 8, after=150) == 165
    assert found.first_k_at_most("dbw", 8, after=165) == 172
    assert found.first_k_at_most("dbw", 6, after=150) == math.inf


def test_a_loss_is_reached_when_that_of_the_latest_n_gradients_is_down_to_it(curves: Curves) -> None:
    """Of 16 workers. The last two iterations have a mean loss of 0.4: (8 · 0.1 + 8 · 0.7) / 16."""
    found = curves("one-run", {"k": [16, 8, 8], "loss": [1.0, 0.7, 0.1], "seconds": [1, 2, 3]})
    assert found.reached("dbw", 1.0) == "1 s"
    assert found.reached("dbw", 0.4) == "3 s"
    assert found.reached("dbw", 0.2) == "never"


def test_the_last_accuracy_that_was_measured_is_told(curves: Curves) -> None:
    found = curves("one-run", {"accuracy": [0.1, None, 0.987, None]})
    assert found.accuracy("dbw") == "98.7 %"


def test_the_edge_of_stability_is_judged_by_the_learning_rate(curves: Curves) -> None:
    """With η = 0.08; the median of 20, 25 and 30 is 25."""
    found = curves("one-run", {"estimated_smoothness": [None, 1000.0, 20.0, None, 30.0, 25.0]})
    assert found.edge(2) == "2.00"


def test_estimates_are_compared_with_exact_values_where_both_are_known(curves: Curves) -> None:
    """Exact decreases are known where two exact losses in a row are: 0.5, 0.25 and 0.125 here."""
    found = curves(
        "estimators",
        {
            "estimated_squared_norm": [None, 1.1, 5.0, 3.0, 9.0],
            "exact_squared_norm": [1.0, 1.0, None, 2.0, 10.0],
            "exact_variance": [4.0, 2.0, None, 2.0, 1.0],
            "estimated_gain": [None, 0.25, 7.0, 0.125, -1.0],
            "exact_loss": [2.0, 1.5, 1.25, None, None],
        },
    )
    assert found.error("squared_norm") == "10 %"  # the median of 10, 50 and 10 %
    assert found.ratio() == "0.75"  # that of 0.25, 0.5, 1 and 10
    assert found.ratio(3) == "5.5"
    assert found.negative() == "25 %"
    gains, decreases = found.decreases()
    assert (gains.tolist(), decreases.tolist()) == ([0.25], [0.25])
    assert found.below() == "100 % of 1"


def test_gains_are_told_by_how_often_they_are_a_lower_bound(curves: Curves) -> None:
    found = curves(
        "estimators",
        {"estimated_gain": [0.25, 0.75, 0.25, 9.0], "exact_loss": [2.0, 1.5, 1.0, 0.5]},  # each time 0.5 lower
    )
    assert found.below() == "67 % of 3"


def test_a_gain_that_is_proportional_to_the_decrease_has_a_correlation_of_one(curves: Curves) -> None:
    found = curves("estimators", {"estimated_gain": [0.5, 0.25, 0.125, 9.0], "exact_loss": [4.0, 3.0, 2.5, 2.25]})
    assert found.correlation() == "1.00"


def test_errors_of_durations_are_those_of_the_estimates_that_are_there(curves: Curves) -> None:
    """Nothing is known before the first iteration, which does not count. Five workers."""
    unknown: list[float | None] = [None, None, None, None, None]
    found = curves(
        "durations",
        {
            "average_durations": [unknown, [1.0, None, 0.5, None, 3.0], [0.5, 1.0, 2.0, 3.0, None]],
            "estimated_durations": [unknown, [1.0, 1.0, 1.0, 2.0, 3.0], [0.5, 1.0, 2.0, 3.0, 3.0]],
        },
    )
    naive, constrained = found.duration_errors("average"), found.duration_errors("estimated")
    assert (naive.unknown, constrained.unknown) == ("30 %", "0 %")
    assert (naive.disordered, constrained.disordered) == ("50 %", "0 %")
    truth = constrained.truth
    assert truth.shape == (5,)
    errors = abs(constrained.estimates[-1] - truth) / truth
    assert constrained.off == f"{100 * errors.mean():.0f} %"
    assert naive.off == f"{100 * errors[:4].mean():.0f} %"


def test_an_error_of_durations_is_relative_to_the_truth() -> None:
    errors = DurationErrors(np.array([[np.nan, np.nan], [1.5, 3.0]]), np.array([1.0, 4.0]))
    assert errors.off == "38 %"  # 50 % and 25 %


def test_the_page_says_which_results_are_missing_and_how_to_get_them(written: Written, tmp_path: Path) -> None:
    missing = written(reaching("dbw", "largest", [1.0])).missing
    with pytest.raises(ScenarioError) as raised:
        page("reproduction", tmp_path)
    assert str(raised.value) == (
        f"{tmp_path} has not all results of {NAME}, {missing} are missing: "
        f"get them with `dbw experiment run {NAME} --output {tmp_path}`"
    )


def test_a_k_that_does_not_always_reach_the_target_is_not_faster(written: Written) -> None:
    found = written(
        reaching("dbw", "largest", [100.0] * 3),
        reaching("static:1", "proportional", [90.0, None, None]),
        reaching("static:2", "proportional", [None] * 3),
        reaching("static:3", "proportional", [90.0] * 3),
    )
    assert found.faster(CASE, "proportional", "dbw") == "3"


def test_nobody_is_faster_than_a_policy_of_which_nothing_is_known(written: Written) -> None:
    assert written(reaching("static:1", "proportional", [1.0])).faster(CASE, "proportional", "dbw") == "none"
