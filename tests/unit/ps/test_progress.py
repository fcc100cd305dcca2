"""A training goes on from a checkpoint of its own, and from no other data."""

from collections.abc import Callable
from typing import Any

import pytest

from dbw_ps.model import FlatModel
from dbw_ps.optimiser import Optimiser
from dbw_ps.outliers import Outliers
from dbw_ps.progress import TrainingState
from tests import models


def begun(checkpoint: dict[str, Any]) -> TrainingState:
    model = FlatModel(models.tiny())
    return TrainingState.begin(model, Optimiser(model, "sgd:lr=0.1,momentum=0.9"), checkpoint)


def checkpoint() -> dict[str, Any]:
    state, outliers = begun({}), Outliers(10.0)
    outliers.problem(0, 1.0)
    state.optimiser.step(0.0)
    state.progress.ended({0: 1.0}, 3.0, outliers.state)
    state.progress.model_is_behind = False
    captured = state.capture({"a": 0}, {"a": "alice"})
    assert captured is not None
    return captured


def test_a_training_goes_on_as_it_was() -> None:
    state = begun(checkpoint())
    assert state.is_resumed
    assert (state.progress.iteration, state.progress.seconds, state.progress.losses) == (1, 3.0, [1.0])
    assert state.progress.usual_norms["gradient"]["workers"] == {0: 1.0}


def test_a_checkpoint_of_a_version_that_wrote_less_is_taken() -> None:
    less = checkpoint()
    for key in ("usual_norms", "told_losses", "worker_identities"):
        del less[key]
    assert begun(less).progress.iteration == 1


@pytest.mark.parametrize(
    "change",
    [
        *(
            lambda state, key=key: state.pop(key)
            for key in ("iteration", "model", "optimiser", "random_state", "workers")
        ),
        lambda state: state.update(iteration=-1),
        lambda state: state.update(losses=["1.0"]),
        lambda state: state.update(workers={"a": "b"}),
        lambda state: state.update(usual_norms={"gradient": {"workers": {0: 1.0}}}),
        lambda state: state.update(told_losses=[{0: None}]),
        lambda state: state.update(random_state=None),
        lambda state: state.update(model=None),
        lambda state: state.update(model=dict.fromkeys(state["model"])),
        lambda state: state["optimiser"].update(optimizer={}),
        lambda state: state["optimiser"].update(names=None),
    ],
)
def test_data_that_is_no_checkpoint_of_a_training_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    state = checkpoint()
    change(state)
    with pytest.raises(ValueError):  # noqa: PT011 (its text may be that of msgspec or PyTorch)
        begun(state)
