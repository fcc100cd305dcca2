"""Round trips of workers that are interrupted (Push & Interrupt), and the durations that follow from them.

All workers begin when parameters are published, and the k-th arrival ends the iteration; of the other workers one knows
only that they would have taken longer. How much longer is drawn from an exponential distribution: its mean is what each
worker's time without an arrival and its arrivals say, after the first moment at which anybody arrives at all, together
with one arrival of an average worker, so that those of which little is seen are not taken for hopeless.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Raw, Struct

from dbw_controller.core.estimators.forecast import Forecast, forecast
from dbw_controller.core.kernels import Array
from dbw_controller.core.reports import MAX_ITERATION, MAX_SECONDS, Arrivals, EndCause, IterationSummary
from dbw_controller.core.state import Workers, decode, pack, unpack

FADING, SLOW_FADING = 0.87, 0.97  # what an iteration counts after the next one, and after one that tells nothing
EXPOSED_FRACTION = 0.05  # of an iteration: a worker that did not arrive for longer than this tells something
FIRSTS = 20  # iterations whose first arrival tells when anybody arrives at all
# A worker that has missed this many deadlines may hang. It is given another chance when its long wait has faded.
MISSES, RETRY_EVERY = 3, 64
DRAWS = 4  # for each iteration
# Steps of a sequence that fills a square evenly (Roberts' R2): as good as random numbers here, and always the same.
STEP, WORKER_STEP = 0.7548776662466927, 0.5698402909980532


COLUMNS = dict.fromkeys(("exposure", "events", "mean"), MAX_SECONDS * FIRSTS * DRAWS)
COLUMNS["square"] = MAX_SECONDS**2 * FIRSTS * DRAWS  # the largest number of each


class InterruptedTripsState(Struct, frozen=True):
    """What was seen of each worker, and the ordered times that follow from it."""

    live: Workers
    exposure: bytes
    events: bytes
    mean: bytes
    square: bytes
    weight: Annotated[float, Meta(ge=0, le=FIRSTS * DRAWS)]
    drawn: Annotated[int, Meta(ge=0, le=MAX_ITERATION)]
    firsts: Annotated[list[Annotated[float, Meta(ge=0, le=MAX_SECONDS)]], Meta(max_length=FIRSTS)]
    missed: bytes | None = None  # missing in states of earlier versions


class InterruptedTrips:
    """Keeps fading sums of what is seen of each worker, and of the ordered times that follow for all of them."""

    def __init__(self) -> None:
        self._live: tuple[int, ...] = ()
        self._exposure = np.zeros(0)  # seconds in which a worker could have arrived and did not
        self._events = np.zeros(0)  # how often it did
        self._missed = np.zeros(0)  # deadlines in a row that passed without a worker
        self._firsts: deque[float] = deque(maxlen=FIRSTS)
        self._drawn = 0
        self._mean, self._square, self._weight = np.zeros(0), np.zeros(0), 0.0

    def ended(self, summary: IterationSummary, arrivals: Iterable[Arrivals], live: Sequence[int]) -> None:
        """Learn who arrived when, and who did not."""
        if tuple(live) != self._live:
            self._resize(tuple(live))
        came: dict[int, float] = {}
        for batch in arrivals:
            if batch.iteration == summary.iteration and batch.workers is not None:
                came |= zip(batch.workers, batch.seconds.tolist(), strict=True)
        seconds = np.fromiter((came.get(number, np.inf) for number in live), float, len(live))
        arrived = seconds <= summary.duration_seconds
        self._missed += summary.end_cause is EndCause.DEADLINE
        self._missed[arrived] = 0
        if arrived.any():
            self._learn(np.minimum(seconds, summary.duration_seconds), arrived, summary.duration_seconds)

    def _learn(self, seconds: Array, arrived: npt.NDArray[np.bool_], duration: float) -> None:
        self._firsts.append(float(seconds.min()))
        exposed = np.maximum(seconds - min(self._firsts), 0.0)
        kept = np.where(arrived | (exposed > EXPOSED_FRACTION * duration), FADING, SLOW_FADING)
        self._exposure = kept * self._exposure + exposed
        self._events = kept * self._events + arrived
        average = self._exposure.sum() / self._events.sum()
        longer = (self._exposure + average) / (self._events + 1)
        fading = FADING ** (1 / DRAWS)
        for _ in range(DRAWS):
            self._drawn = (self._drawn + 1) % MAX_ITERATION
            uniform = (self._drawn * STEP + np.arange(1, len(seconds) + 1) * WORKER_STEP) % 1.0
            drawn = np.minimum(duration - longer * np.log1p(-uniform), MAX_SECONDS)
            times = np.sort(np.where(arrived, seconds, drawn))
            self._mean = fading * self._mean + times
            self._square = fading * self._square + times * times
            self._weight = fading * self._weight + 1.0

    def _resize(self, live: tuple[int, ...]) -> None:
        """Make room for these workers. What is known of those that stay is kept, and durations are learnt again."""
        exposure, events = (dict(zip(self._live, some, strict=True)) for some in (self._exposure, self._events))
        self._live = live
        self._exposure = np.array([exposure.get(number, 0.0) for number in live])
        self._events = np.array([events.get(number, 0.0) for number in live])
        self._missed = np.zeros(len(live))
        self._mean, self._square, self._weight = np.zeros(len(live)), np.zeros(len(live)), 0.0

    def reset(self) -> None:
        """All workers are idle, as they are at the beginning of every iteration."""

    def forecast(self) -> Forecast | None:
        """How long it takes until the k-th arrives."""
        if not self._weight:
            return None
        coming = int(((self._missed < MISSES) | (self._missed % RETRY_EVERY == 0)).sum())
        return forecast(self._mean / self._weight, self._square / self._weight, coming)

    def snapshot(self) -> InterruptedTripsState:
        """All that was learnt."""
        columns = {name: pack(getattr(self, f"_{name}")) for name in (*COLUMNS, "missed")}
        firsts = list(self._firsts)
        return InterruptedTripsState(list(self._live), weight=self._weight, drawn=self._drawn, firsts=firsts, **columns)

    def restore(self, data: Raw) -> None:
        """Replace all that was learnt by an encoded state."""
        state = decode(data, InterruptedTripsState)
        live = state.live
        if state.weight and not live:
            raise ValueError("there are times of workers, and no workers")
        columns = [unpack(getattr(state, name), len(live), 0, most) for name, most in COLUMNS.items()]
        self._exposure, self._events, self._mean, self._square = columns
        self._live, self._firsts = tuple(live), deque(state.firsts, FIRSTS)
        self._missed = np.zeros(len(live))
        if state.missed is not None:
            self._missed = unpack(state.missed, len(live), 0, MAX_ITERATION)
        self._weight, self._drawn = state.weight, state.drawn
