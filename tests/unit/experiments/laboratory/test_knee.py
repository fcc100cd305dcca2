"""The knee rule on curves that are made by hand."""

import math
from collections import Counter

import pytest
from msgspec.structs import replace

from dbw_controller.named_policies import policy_from
from dbw_experiments.laboratory.analysis.knee import RATES, Curve, curves, knee_runs
from dbw_experiments.laboratory.runs import Outcome, Record, Run

RUN = Run(
    model="mlp",
    dataset="digits",
    workers=4,
    batch=8,
    policy="sync",
    rate=1.0,
    delay="constant:1",
    seed=0,
    iterations=3,
)


@pytest.mark.parametrize(
    ("losses", "knee"),
    [
        # From 2.0 the best rate goes down by 1.0: a rate is nearly as good if it comes down to 1.05.
        ({0.1: 1.5, 0.2: 1.06, 0.4: 1.04, 0.8: 1.0, 1.6: 1.02}, 0.4),
        ({0.1: 1.5, 0.2: 1.04, 0.4: 1.5, 0.8: 1.0}, 0.2),
        # The best rate comes before others diverge.
        ({0.1: 1.8, 0.2: 1.4, 0.4: 1.0, 0.8: math.inf, 1.6: math.inf}, 0.4),
        # Losses fall all the way: the knee is beyond the rates that were tried, and the largest the best guess.
        ({0.1: 1.8, 0.2: 1.6, 0.4: 1.3, 0.8: 1.0}, 0.8),
        # Larger rates are worse and worse.
        ({0.1: 1.0, 0.2: 1.3, 0.4: 2.5, 0.8: math.inf}, 0.1),
        ({0.1: 1.7}, 0.1),
    ],
    ids=["flat bottom", "second dip", "diverging", "falling", "rising", "one rate"],
)
def test_the_knee_is_the_smallest_rate_that_is_nearly_as_good_as_the_best(
    losses: dict[float, float], knee: float
) -> None:
    assert Curve(2.0, losses).knee == knee
    assert Curve(2.0, dict(reversed(losses.items()))).knee == knee


def test_where_the_best_rate_is_compared_with_a_higher_loss_more_rates_are_nearly_as_good() -> None:
    losses = {0.1: 1.2, 0.2: 1.0}
    assert Curve(2.0, losses).knee == 0.2
    assert Curve(6.0, losses).knee == 0.1  # it falls by 4.8 of 5.0


def test_each_k_is_tried_with_each_rate_and_seed_once() -> None:
    runs = knee_runs(RUN, [1, 4], 3)
    tried = Counter((run.policy, run.rate, run.seed) for run in runs)
    assert tried == {
        (policy, rate, seed): 1 for policy in ("static:1", "static:4") for rate in RATES for seed in range(3)
    }
    assert len(set(RATES)) == 17
    assert (min(RATES), max(RATES)) == (0.005, 1.3)


def test_all_else_of_a_short_training_is_as_it_was_told() -> None:
    for run in knee_runs(RUN, [2], 1):
        policy_from(run.policy)
        assert run.detail == "curves"  # the first loss is needed
        assert replace(run, policy="sync", rate=1.0, rule="", detail="summary") == RUN


def record(k: int, rate: float, seed: int, first: float, last: float | None) -> Record:
    run = replace(RUN, policy=f"static:{k}", rate=rate, seed=seed)
    return Record(
        run,
        Outcome(reached=None, iterations=2, gradients=2 * k, seconds=2.0, loss=last, columns={"loss": [first, last]}),
    )


def test_curves_are_means_over_seeds() -> None:
    records = [
        record(1, 0.2, 0, first=2.5, last=1.0),
        record(1, 0.1, 0, first=2.5, last=2.0),
        record(1, 0.1, 1, first=2.0, last=1.0),
        record(1, 0.2, 1, first=2.0, last=0.5),
    ]
    assert curves(records) == {1: Curve(2.25, {0.1: 1.5, 0.2: 0.75})}


def test_each_k_has_a_curve_of_its_own_and_both_are_in_order() -> None:
    records = [record(k, rate, 0, first=float(k), last=rate) for k in (16, 2) for rate in (0.4, 0.1)]
    found = curves(records)
    assert found == {2: Curve(2.0, {0.1: 0.1, 0.4: 0.4}), 16: Curve(16.0, {0.1: 0.1, 0.4: 0.4})}
    assert list(found) == [2, 16]
    assert all(list(curve.losses) == [0.1, 0.4] for curve in found.values())


def test_a_training_that_diverged_has_an_infinite_loss_whatever_other_seeds_did() -> None:
    records = [
        record(1, 0.1, 0, first=2.0, last=1.0),
        record(1, 0.1, 1, first=2.0, last=1.0),
        record(1, 0.8, 0, first=2.0, last=0.01),
        record(1, 0.8, 1, first=2.0, last=None),
    ]
    curve = curves(records)[1]
    assert curve == Curve(2.0, {0.1: 1.0, 0.8: math.inf})
    assert curve.knee == 0.1


def test_nothing_has_no_curves() -> None:
    assert curves([]) == {}


@pytest.mark.parametrize("losses", [{0.1: 2.4, 0.2: 2.5}, {0.1: math.inf, 0.2: math.inf}])
def test_there_is_no_knee_if_every_rate_raises_the_loss(losses: dict[float, float]) -> None:
    assert Curve(2.3, losses).knee is None
