"""How long a worker's computations take, and when one takes so long that the worker is stalled.

A pace holds no clock: times are seconds on any clock that does not go back.
"""

STALLED_FACTOR = 10.0  # a computation is stalled when it takes this many times as long as the longest one before
# Before, or after joining again, it may take this many time-outs of workers: it may compile kernels for minutes.
FIRST_TIMEOUTS = 20.0
# A worker that was stalled, and finished its computation after all, is waited for this many times as long from then on:
# if it has become slower that is soon enough, and if it has hung the next time is noticed soon.
PATIENCE_FACTOR = 2.0


class Pace:
    """The computations of one worker, over all of its sessions."""

    def __init__(self) -> None:
        self.longest: float | None = None  # of its computations, but the first of each session
        self._joined = 0.0
        self._is_first = True
        self._stalled_after: float | None = None  # seconds of the computation under way, if it is stalled
        self._reset()

    def _reset(self) -> None:
        self.version: int | None = None  # of the parameters that it is busy with
        self._began: float | None = None  # when the computation under way began
        self._owing_since: float | None = None  # when the parameters came for which there is no gradient yet
        self._newest: int | None = None  # version of the parameters that are being sent to it, or were last
        self._is_sent = False

    def join(self, now: float) -> None:
        """A session begins."""
        self._joined, self._is_first = now, True
        self.leave()

    def leave(self) -> None:
        """A session is over."""
        self._stalled_after = None
        self._reset()

    def send(self, version: int, now: float) -> None:
        """Parameters begin to be sent to the worker, which owes a gradient for them."""
        if self._owing_since is None or not self._is_sent:  # then they replace some that were not sent whole
            self.version, self._owing_since = version, now
        self._newest, self._is_sent = version, False

    def sent(self, now: float) -> None:
        """These parameters were sent."""
        self._is_sent = True
        if self.version == self._newest:
            self._owing_since = now

    def compute(self, version: int, seconds: float, now: float) -> None:
        """The worker says that it has been computing with these parameters for this long."""
        self.version, self._began = version, now - self._credible(seconds, now)

    def wait(self) -> None:
        """The worker says that it is not computing: it waits, or sends what it has computed."""
        self._began = None

    def finish(self, version: int, seconds: float | None, now: float) -> None:
        """The worker is done with the gradient of a version, which has taken this time, if it says so."""
        if seconds is not None:
            if not self._is_first:
                seconds = self._credible(seconds, now)
                if self._stalled_after is not None:
                    seconds = min(seconds, PATIENCE_FACTOR * self._stalled_after / STALLED_FACTOR)
                self.longest = max(self.longest or 0.0, seconds)
            self._is_first = False
        self._began = self._stalled_after = None
        has_newer = self._newest is not None and self._newest > version
        self.version, self._owing_since = (self._newest, now) if has_newer else (None, None)

    def seconds(self, now: float) -> float | None:
        """How long the computation under way has taken."""
        return None if self._began is None else max(now - self._began, 0.0)

    def busy_seconds(self, now: float) -> float:
        """How long a gradient has been waited for: since its computation began or, if unknown, its parameters came."""
        since = self._owing_since if self._began is None else self._began
        return 0.0 if since is None else max(now - since, 0.0)

    def find_stalled(self, now: float, timeout: float, usual_longest: float) -> bool:
        """Whether the gradient under way takes far longer than this worker ever took or, at first, most workers."""
        is_on_its_way = self._began is None and self.version == self._newest and not self._is_sent
        if self._is_first or self.longest is None or is_on_its_way:
            limit = max(FIRST_TIMEOUTS * timeout, STALLED_FACTOR * usual_longest)
        else:
            limit = max(timeout, STALLED_FACTOR * self.longest)
        self._stalled_after = limit if self.busy_seconds(now) > limit else None
        return self._stalled_after is not None

    def postpone(self, seconds: float) -> None:
        """Do not count this time, in which the worker could not be heard."""
        if self._began is not None:
            self._began += seconds
        if self._owing_since is not None:
            self._owing_since += seconds

    def _credible(self, seconds: float, now: float) -> float:
        """What a worker says, without nonsense: nothing takes longer than its session."""
        return min(seconds, now - self._joined) if seconds > 0 else 0.0
