"""What DBW+ learns: how far the loss is above the noise floor, and how long each worker takes."""

from collections.abc import Sequence

from msgspec import Raw, Struct

from dbw_controller.core.estimators.finished_trips import FinishedTrips
from dbw_controller.core.estimators.forecast import Forecast
from dbw_controller.core.estimators.interrupted_trips import InterruptedTrips
from dbw_controller.core.estimators.noise_floor import NoiseFloor
from dbw_controller.core.estimators.roster import Roster
from dbw_controller.core.policies.policy import Memory
from dbw_controller.core.reports import Arrivals, IterationSummary, Membership
from dbw_controller.core.state import Workers, decode, encode

# Of arrivals that wait for the end of their iteration: rows, and batches of them.
MOST_ROWS_A_WORKER, MOST_BATCHES_A_WORKER = 64, 4


class DbwPlusState(Struct, frozen=True):
    """All that DBW+ has learnt."""

    floor: NoiseFloor
    roster: Workers
    interrupted: bool  # whether the workers are
    trips: Raw


class DbwPlusMemory(Memory):
    """Estimators of DBW+. Durations are those of the iteration before the last: a decision need not wait for them."""

    def __init__(self, interrupted: bool) -> None:
        self.floor = NoiseFloor()
        self.forecast: Forecast | None = None
        self._interrupted = interrupted
        self._trips = InterruptedTrips() if interrupted else FinishedTrips()
        self._roster = Roster()
        self._arrivals: list[Arrivals] = []
        self._rows = 0
        self._ended: IterationSummary | None = None  # whose arrivals nothing was learnt from yet

    def arrived(self, arrivals: Sequence[Arrivals]) -> None:
        """Keep arrivals until their iteration has ended."""
        for batch in arrivals:
            if batch.workers is not None:
                self._arrivals.append(batch)
                self._rows += len(batch.seconds)

    def ended(self, summary: IterationSummary) -> None:
        """Learn about the loss, and keep the rest for later."""
        self.floor.observe(summary)
        self._ended = summary

    def catch_up(self, membership: Membership) -> None:
        """Learn from the last iteration's times."""
        rows = MOST_ROWS_A_WORKER * max(membership.live_workers, 16)
        batches = MOST_BATCHES_A_WORKER * max(membership.live_workers, 256)
        while self._rows > rows or len(self._arrivals) > batches:
            self._rows -= len(self._arrivals.pop(0).seconds)
        if self._ended is None:
            return
        ended, arrivals = self._ended, self._arrivals
        self._ended, self._arrivals, self._rows = None, [], 0
        if live := self._roster.update(membership, arrivals):
            self._trips.ended(ended, arrivals, live)
            self.forecast = self._trips.forecast()

    def reset(self, new_training: bool) -> None:
        """Forget who is in the middle of what and, with a new training, how the last one went."""
        self._arrivals, self._rows, self._ended = [], 0, None
        self._trips.reset()
        if new_training:
            self.floor = NoiseFloor()

    def snapshot(self) -> DbwPlusState:
        """All that was learnt."""
        trips = Raw(encode(self._trips.snapshot()))
        return DbwPlusState(self.floor, self._roster.snapshot(), self._interrupted, trips)

    def restore(self, data: Raw) -> None:
        """Replace all that was learnt by an encoded state."""
        state = decode(data, DbwPlusState)
        self.floor = state.floor
        self._roster.restore(state.roster)
        if state.interrupted == self._interrupted:  # otherwise it is of workers that do something else
            self._trips.restore(state.trips)
        self.forecast = self._trips.forecast()
