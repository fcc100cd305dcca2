"""The newest checkpoints, one of each hour and the best one are kept, whatever the clock does."""

from hypothesis import given
from hypothesis import strategies as st

from dbw_ps.retention import HOUR_SECONDS, MIN_LOSSES, Saved, kept, loss_of

TIMES = st.floats(-1e10, 1e10)  # of a clock that may jump anywhere
LOSSES = st.none() | st.floats(allow_nan=False, allow_infinity=False)
CHECKPOINTS = st.lists(st.builds(Saved, st.integers(0, 10**6), TIMES, LOSSES), unique_by=lambda saved: saved.iteration)


@given(CHECKPOINTS, st.integers(1, 5), st.integers(0, 30))
def test_the_newest_and_the_best_are_kept_whatever_the_clock_says(
    checkpoints: list[Saved], newest: int, hours: int
) -> None:
    keep = kept(checkpoints, newest, hours)
    iterations = sorted((saved.iteration for saved in checkpoints), reverse=True)
    assert keep >= set(iterations[:newest])
    losses = {saved.iteration: saved.loss for saved in checkpoints if saved.loss is not None}
    assert not losses or min(losses.values()) in [losses.get(iteration) for iteration in keep]
    assert keep <= set(iterations)
    assert len(keep) <= newest + hours + 1


@given(CHECKPOINTS, st.integers(1, 5), st.integers(0, 30), TIMES)
def test_a_clock_that_jumps_by_whole_hours_makes_no_difference(
    checkpoints: list[Saved], newest: int, hours: int, jump: float
) -> None:
    offset = jump // HOUR_SECONDS * HOUR_SECONDS
    whole = [saved._replace(seconds=saved.seconds // HOUR_SECONDS * HOUR_SECONDS) for saved in checkpoints]
    moved = [saved._replace(seconds=saved.seconds + offset) for saved in whole]
    assert kept(whole, newest, hours) == kept(moved, newest, hours)


@given(st.floats(10, 5000), st.floats(0, 1e9), st.integers(1, 60))
def test_a_training_that_goes_on_for_days_has_one_checkpoint_of_each_hour(
    every: float, begin: float, hours: int
) -> None:
    there: list[Saved] = []
    for iteration in range(min(int(hours * HOUR_SECONDS / every), 500) + 1):
        there.append(Saved(iteration, begin + iteration * every, None))
        keep = kept(there, 3, 24)
        there = [saved for saved in there if saved.iteration in keep]
    written = {int((begin + i * every) // HOUR_SECONDS) for i in range(there[-1].iteration + 1)}
    assert {int(saved.seconds // HOUR_SECONDS) for saved in there} >= set(sorted(written)[-24:])


def test_a_checkpoint_of_a_bad_past_does_not_displace_the_best_one() -> None:
    checkpoints = [
        Saved(0, 0.0, None),
        Saved(10, 1.0, 0.5),
        Saved(20, 2.0, 0.2),
        Saved(30, 3.0, 9.0),
        Saved(40, 4.0, 8.0),
    ]
    assert kept(checkpoints, 1, 0) == {20, 40}


def test_a_loss_is_that_of_many_iterations_and_one_that_is_wrong_changes_nothing() -> None:
    assert loss_of([0.1] * (MIN_LOSSES - 1)) is None
    assert loss_of([0.1] * (MIN_LOSSES - 1) + [-1e9]) == 0.1
    assert loss_of([float("nan")] * MIN_LOSSES) is None
    assert loss_of([]) is None
