"""What is computed from columns and times, on results that are made by hand."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dbw_experiments.laboratory.analysis.columns import exact, seconds_to_accuracy, smoothed
from dbw_experiments.laboratory.analysis.durations import true_durations
from dbw_experiments.laboratory.analysis.times import Times
from dbw_experiments.laboratory.runs import Column, Outcome, Run

WORKERS = 4


def test_an_accuracy_is_reached_when_an_iteration_begins_with_it() -> None:
    columns: dict[str, Column] = {"seconds": [1.0, 2.0, 3.0, 4.5], "accuracy": [0.1, None, 0.8, 0.7]}
    outcome = Outcome(reached=None, iterations=4, gradients=4, seconds=4.5, loss=1.0, columns=columns)
    assert [seconds_to_accuracy(outcome, target) for target in (0.1, 0.75, 0.8, 0.9)] == [0.0, 2.0, 2.0, None]


def test_the_loss_is_smoothed_over_the_latest_n_gradients() -> None:
    # n = 4: the first alone, then both, then the latest three, whose 1 + 2 + 2 are enough, then the latest alone
    assert smoothed([1, 2, 2, 4], [8.0, 2.0, 4.0, 1.0], workers=4) == pytest.approx([8.0, 4.0, 3.0, 1.0])


def test_the_exact_loss_decrease_is_known_where_two_losses_in_a_row_are() -> None:
    decrease = exact({"exact_loss": [2.0, 1.5, None, 1.0, 0.75]}, "gain")
    assert np.array_equal(decrease, [0.5, np.nan, np.nan, 0.25, np.nan], equal_nan=True)


def test_true_durations_are_the_means_of_order_statistics_where_workers_are_interrupted() -> None:
    run = Run(
        model="mlp",
        dataset="digits",
        workers=WORKERS,
        batch=8,
        policy="dbw",
        rate=0.1,
        delay="exp:1",
        seed=0,
        sync_mode="push-interrupt",
    )
    expected = np.cumsum([1 / (WORKERS - i) for i in range(WORKERS)])  # of exponential delays (Rényi)
    assert true_durations(run, Path()) == pytest.approx(expected, rel=0.08)


def test_times_that_are_not_always_reached_have_no_mean() -> None:
    assert Times([1.0, 3.0], 0).mean == 2.0
    assert Times([1.0, 3.0], 1).mean == float("inf")
    assert Times([9.0], 0).rank < Times([1.0], 1).rank


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (Times([3.0, 1.0, 2.0], 0), 2.0),
        (Times([1.0, 3.0], 0), 2.0),
        (Times([1.0, 2.0], 1), 2.0),
        (Times([1.0], 2), math.inf),
        (Times([], 0), math.inf),
    ],
)
def test_a_run_that_never_reaches_the_target_is_the_slowest_of_all(times: Times, expected: float) -> None:
    assert times.median == expected


def test_commands_and_analysis_load_no_matplotlib() -> None:
    """It takes a second to import."""
    modules = "dbw_experiments.laboratory.app, dbw_experiments.laboratory.pages"
    program = f"import sys, {modules}; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"False\n"
