"""What is expected of the durations of iterations, for each k."""

from typing import NamedTuple

import numpy as np

from dbw_controller.core.kernels import Array


class Forecast(NamedTuple):
    """Durations of an iteration in seconds, for each k from 1 to the number of workers."""

    seconds: Array  # the mean, never falling with k
    deviation: Array  # the standard deviation
    coming: int  # workers whose gradients come; of the others none has come for unusually long, and they may hang

    def of(self, workers: int) -> "Forecast":
        """The same for another number of workers, as long as nothing is known of the change: the last k's, repeated."""
        known = len(self.seconds)
        if workers == known:
            return self
        k = np.minimum(np.arange(workers), known - 1)
        return Forecast(self.seconds[k], self.deviation[k], min(self.coming, workers))


def forecast(mean: Array, square: Array, coming: int) -> Forecast:
    """A forecast from means of durations and of their squares."""
    return Forecast(np.maximum.accumulate(mean), np.sqrt(np.maximum(square - mean * mean, 0.0)), coming)
