"""What DBW+ learns: how far the loss is above the noise floor, and how long each worker takes."""

from collections.abc import Sequence
from typing import Any

from dbw_controller.core.estimators.finished_trips import FinishedTrips
from dbw_controller.core.estimators.forecast import Ended, Forecast, Trips
from dbw_controller.core.estimators.interrupted_trips import InterruptedTrips
from dbw_controller.core.estimators.noise_floor import NoiseFloor
from dbw_controller.core.estimators.roster import Roster
from dbw_controller.core.policies.policy import Memory
from dbw_controller.core.reports import Arrivals, IterationSummary, Membership

MOST_ROWS_A_WORKER = 64  # of arrivals that wait for the end of their iteration


class DbwPlusMemory(Memory):
    """Estimators of DBW+. Durations are those of the iteration before the last: a decision need not wait for them."""

    def __init__(self, interrupted: bool) -> None:
        self.floor = NoiseFloor()
        self.forecast: Forecast | None = None
        self._interrupted = interrupted
        self._trips: Trips = InterruptedTrips() if interrupted else FinishedTrips()
        self._roster = Roster()
        self._arrivals: list[Arrivals] = []
        self._rows = 0
        self._ended: Ended | None = None  # whose arrivals nothing was learnt from yet

    def arrived(self, arrivals: Sequence[Arrivals]) -> None:
        """Keep arrivals until their iteration has ended."""
        for batch in arrivals:
            if batch.workers is not None:
                self._arrivals.append(batch)
                self._rows += len(batch.seconds)

    def ended(self, summary: IterationSummary) -> None:
        """Learn about the loss, and keep the rest for later."""
        self.floor.observe(summary)
        self._ended = Ended(summary.iteration, summary.published_seconds, summary.duration_seconds)

    def catch_up(self, membership: Membership) -> None:
        """Learn from the last iteration's times."""
        while self._rows > MOST_ROWS_A_WORKER * max(membership.live_workers, 16):
            self._rows -= len(self._arrivals.pop(0).seconds)
        if self._ended is None:
            return
        ended, arrivals = self._ended, self._arrivals
        self._ended, self._arrivals, self._rows = None, [], 0
        if live := self._roster.update(membership, arrivals):
            self._trips.ended(ended, arrivals, live)
            self.forecast = self._trips.forecast()

    def begin(self, anew: bool) -> None:
        """Forget who is in the middle of what, and, if another training begins, how that went."""
        self._arrivals, self._rows, self._ended = [], 0, None
        self._trips.begin()
        if anew:
            self.floor = NoiseFloor()

    def snapshot(self) -> dict[str, Any]:
        """All that was learnt, as plain data."""
        return {
            "floor": self.floor.snapshot(),
            "roster": self._roster.snapshot(),
            "interrupted": self._interrupted,
            "trips": self._trips.snapshot(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace all that was learnt by what a snapshot holds."""
        self.floor.restore(state["floor"])
        self._roster.restore(state["roster"])
        if state["interrupted"] == self._interrupted:  # otherwise it is of workers that do something else
            self._trips.restore(state["trips"])
        self.forecast = self._trips.forecast()
