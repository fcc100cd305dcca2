"""Whether a target is reached is what most workers say; one that lies does not end a training."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbw_ps.losses import LARGEST_LOSS, LOSSES, MAX_ITERATIONS, MIN_WORKERS, Losses
from dbw_ps.options import PsOptions
from dbw_ps.progress import Progress

GOAL = PsOptions(model="mlp", target_loss=0.1)
NORMS: dict[str, float] = {}
LIE = -1e9


def test_a_single_worker_is_believed_after_ten_iterations() -> None:
    progress = Progress()
    for i in range(LOSSES):
        assert not progress.has_reached(GOAL)
        assert progress.ended({0: 0.05}, float(i), NORMS) == 0.05
    assert progress.has_reached(GOAL)


@pytest.mark.parametrize("lie", [LIE, -5.0, 0.0])
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_a_worker_that_always_lies_does_not_end_a_training(workers: int, lie: float) -> None:
    progress = Progress()
    for i in range(50):
        progress.ended(dict.fromkeys(range(workers), 1.0) | {0: lie}, float(i), NORMS)
        assert not progress.has_reached(GOAL)


@pytest.mark.parametrize("every", [2, 10, 50])
def test_a_liar_that_is_the_first_in_most_iterations_does_not_end_a_training(every: int) -> None:
    progress = Progress()
    for i in range(1000):
        progress.ended({1 + i // every % 2: 1.0} if i % every == 0 else {0: LIE}, float(i), NORMS)
        assert not progress.has_reached(GOAL)


def test_most_workers_end_a_training_though_one_of_them_says_what_is_absurd() -> None:
    progress = Progress()
    for i in range(LOSSES):
        progress.ended({0: 1e9, 1: 0.05, 2: 0.05}, float(i), NORMS)
    assert progress.has_reached(GOAL)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_single_lie_ends_nothing_and_is_not_averaged(workers: int) -> None:
    progress = Progress()
    for i in range(30):
        told = dict.fromkeys(range(workers), 1.0)
        loss = progress.ended(told | {0: LIE} if i == 15 else told, float(i), NORMS)
        assert not progress.has_reached(GOAL)
        assert loss == (None if (i, workers) == (15, 1) else 1.0)
    assert progress.loss == 1.0


def test_a_worker_that_is_gone_is_not_asked_for_ever() -> None:
    progress = Progress()
    for i in range(10):
        progress.ended({0: 1.0, 1: 1.0}, float(i), NORMS)
    for i in range(MAX_ITERATIONS):
        assert not progress.has_reached(GOAL)
        progress.ended({0: 0.05}, float(i), NORMS)
    progress.ended({0: 0.05}, 0.0, NORMS)
    assert progress.has_reached(GOAL)


def test_a_loss_that_really_changes_is_averaged_again_at_once() -> None:
    losses = Losses()
    for _ in range(20):
        assert losses.add({0: 0.001}) == [0.001]
    assert losses.add({0: 50.0}) == []
    assert losses.add({0: 50.0}) == [50.0]


def test_a_loss_of_zero_is_a_loss() -> None:
    losses = Losses()
    assert losses.add({0: 0.0}) == [0.0]
    assert losses.add({0: 0.0, 1: 0.0, 2: 0.5}) == [0.0, 0.0, 0.5]


def test_an_iteration_without_losses_has_none() -> None:
    progress = Progress()
    progress.ended({0: 1.0}, 1.0, NORMS)
    assert progress.ended({}, 2.0, NORMS) is None
    assert (progress.loss, progress.iteration) == (1.0, 2)


def test_progress_goes_on_from_a_checkpoint_also_from_one_of_an_earlier_version() -> None:
    progress = Progress()
    for i in range(12):
        progress.ended({0: 0.05, 3: 0.06}, float(i), NORMS)
    again = Progress.of(progress.state())
    assert again.state() == progress.state()
    assert again.has_reached(GOAL)
    old = Progress.of({"iteration": 12, "seconds": 3.0, "losses": [0.05] * 10})
    assert not old.has_reached(GOAL)  # until workers have said so again
    old.ended({0: 0.05}, 4.0, NORMS)
    assert old.has_reached(GOAL)


def test_losses_of_long_ago_are_not_looked_at_where_there_are_enough_workers() -> None:
    losses = Losses()
    for i in range(50):
        losses.add({i % 3: 50.0 - i})
    assert len(losses.recent) == LOSSES
    assert losses.level <= 11.0


def test_absurd_losses_in_a_checkpoint_are_forgotten() -> None:
    absurd = {"losses": [1.7e308] * 10, "told_losses": [{0: 1.7e308, 1: 1.0}, {0: -1.7e308}] * 5}
    progress = Progress.of({"iteration": 12, "seconds": 3.0, **absurd})
    assert not progress.has_reached(GOAL)
    assert progress.ended({0: 1.0, 1: 1.0}, 4.0, NORMS) == 1.0
    assert progress.losses == [1.0]


def test_absurd_losses_are_not_averaged() -> None:
    progress = Progress()
    for i in range(LOSSES):
        assert progress.ended({0: 1.7e308, 1: 1.7e308}, float(i), NORMS) is None
    assert not progress.has_reached(GOAL)


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.dictionaries(st.integers(0, 4), FINITE, max_size=5), max_size=120))
def test_what_is_averaged_was_told_and_no_more_is_kept_than_is_looked_at(history: list[dict[int, float]]) -> None:
    losses = Losses()
    for told in history:
        assert set(losses.add(told)) <= set(told.values())
        assert len(losses.recent) <= MAX_ITERATIONS
        workers = set().union(*losses.recent[1:])
        assert len(losses.recent) <= LOSSES or len(workers) < MIN_WORKERS
        assert losses.level >= min((min(told.values(), default=LARGEST_LOSS) for told in history), default=LARGEST_LOSS)
