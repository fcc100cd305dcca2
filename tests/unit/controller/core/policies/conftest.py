from collections.abc import Callable

import numpy as np
import pytest

from dbw_controller.core.estimators.durations import DurationEstimator
from dbw_controller.core.estimators.gain import GainEstimate
from dbw_controller.core.policies import Observation

Observe = Callable[..., Observation]
UNKNOWN = GainEstimate(None, None, None, None)


@pytest.fixture
def observe() -> Observe:
    """Makes an observation: durations as given, for each k from 1 on, and everything else as named."""

    def make(durations: list[float] | None = None, **fields: object) -> Observation:
        workers = len(durations or [1.0] * 4)
        estimator = DurationEstimator(workers)
        for k, seconds in enumerate(durations or [], 1):
            estimator.add(k, k, np.array([seconds]), 0.0)  # t_kk itself
        values: dict[str, object] = {
            "iteration": 9,
            "workers": workers,
            "learnt_iterations": 9,
            "previous_k": None,
            "loss": None,
            "loss_before": None,
            "first_loss": None,
            "gain": UNKNOWN,
            "duration_estimator": estimator,
        }
        return Observation(**{**values, **fields})  # type: ignore[arg-type]

    return make
