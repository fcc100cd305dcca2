"""Who may make a call, and how many calls there may be.

A caller is authenticated by the metadata of its call, before anything else is read or counted. Clocks are monotonic.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dbw_runtime.callers import Caller
from dbw_runtime.deadlines import Deadlines
from dbw_runtime.failure import StatusError, limit_reached, not_ready
from dbw_runtime.security import Authenticator
from dbw_runtime.taking_turns import TakingTurns

log = logging.getLogger(__name__)
# After the time to finish: for answers that are on their way, and to tell callers that they are cut off.
LAST_ANSWERS_SECONDS = 0.5
LIMIT_RETRY_SECONDS = 1.0
BURST_SECONDS = 1.0  # an identity may make the requests of this time at once
MAX_DELAY = 5.0  # seconds that a stream has to wait for its turn, at most: its client may not wait, and begin others
LOG_SECONDS = 1.0  # between lines about refusals for the same reason


@dataclass(frozen=True)
class CallLimits:
    """How many calls a server takes. An identity's own limits hold where callers are authenticated."""

    calls: int = 4096  # open at once
    identity_calls: int = 256  # open at once, of one identity
    identity_rate: float = 2000.0  # requests a second, of one identity
    first_request_seconds: float = 30.0  # within which the request of a single call must be there
    first_of_stream_seconds: float = 600.0  # within which the first one of a stream must: an iteration may take long
    reading_seconds: float = 120.0  # within which a client must take a response
    newest_first: bool = False  # whether the oldest call makes room for a new one, rather than keeping it out


class OpenCall(Protocol):
    """What the gate knows of a call."""

    identity: str
    is_stream: bool  # whether it may have several requests
    task: "asyncio.Task[Any]"

    def end(self, error: Exception) -> None:
        """End the call with an error, whatever it does."""
        ...

    def stop_waiting(self) -> None:
        """End the call if it waits."""
        ...


class Gate:
    """Admits calls while the server is ready, and ends those that are left when it stops."""

    def __init__(
        self,
        authenticator: Authenticator,
        limits: CallLimits,
        count_refusal: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authenticator, self._limits, self._count_refusal, self._now = authenticator, limits, count_refusal, clock
        self._logged: dict[str, float] = {}  # when a refusal was logged last, by its reason
        self.calls: dict[OpenCall, None] = {}  # that were admitted, until their status is sent; the oldest first
        self.tasks: set[asyncio.Task[Any]] = set()  # of all calls, until their status is sent
        self._silent = Deadlines(limits.first_request_seconds, self._end_silent, clock)
        self._silent_streams = Deadlines(limits.first_of_stream_seconds, self._end_silent, clock)
        self._unread = Deadlines(limits.reading_seconds, self._end_unread, clock)
        self._open: Counter[str] = Counter()  # calls by identity
        self._used_until: dict[str, float] = {}  # by identity: when its requests would be due at its full rate
        self.turns = TakingTurns()
        self.is_open = False
        self._draining = False

    def authenticate(self, context: Any) -> Caller:  # noqa: ANN401 (grpc.aio.ServicerContext lacks some of its methods)
        """Who calls; refuses a caller that does not prove who it is."""
        return self._authenticator.caller(context)

    def admit(self, call: OpenCall) -> None:
        """Take a call in; refuses one that cannot be served."""
        self.refuse_unless_open()
        limits, identity = self._limits, call.identity
        if identity and self._open[identity] >= limits.identity_calls:
            text = f"{limits.identity_calls} calls of {identity!r} are open already; close some, or see the option"
            raise limit_reached("max_identity_calls", f"{text} --max-identity-calls", LIMIT_RETRY_SECONDS)
        if len(self.calls) >= limits.calls:
            self._make_room()
        self.calls[call] = None
        self._open[identity] += 1
        (self._silent_streams if call.is_stream else self._silent).begin(call)
        self.turns.pause()

    def _make_room(self) -> None:
        """End a call that has sent nothing yet, so that such calls cannot keep others out."""
        text = f"{self._limits.calls} calls are open already; close some, or see the option --max-calls"
        full = limit_reached("max_calls", text, LIMIT_RETRY_SECONDS)
        silent = self._silent.oldest or self._silent_streams.oldest
        oldest = next(iter(self.calls)) if self._limits.newest_first else silent
        if oldest is None:
            raise full
        self._end(oldest, full)

    def heard(self, call: OpenCall) -> None:
        """A request of a call has come."""
        self._silent.end(call)
        self._silent_streams.end(call)

    def begin_response(self, call: OpenCall) -> None:
        """A response is being sent, which waits until the client reads."""
        self._unread.begin(call)

    def end_response(self, call: OpenCall) -> None:
        """The client has read."""
        self._unread.end(call)

    def discard(self, call: OpenCall) -> None:
        """A call has ended."""
        if call in self.calls:
            del self.calls[call]
            self.heard(call)
            self._unread.end(call)
            self._open[call.identity] -= 1
            if not self._open[call.identity]:
                del self._open[call.identity]

    def _end(self, call: OpenCall, error: Exception) -> None:
        self.discard(call)
        call.end(error)

    # With UNAVAILABLE, because what is on its way meanwhile is to be sent again.
    def _end_silent(self, call: OpenCall) -> None:
        limits = self._limits
        seconds = limits.first_of_stream_seconds if call.is_stream else limits.first_request_seconds
        self._end(call, not_ready(f"no request has come for {seconds:g} s; begin a call when there is one to send"))

    def _end_unread(self, call: OpenCall) -> None:
        seconds = self._limits.reading_seconds
        self._end(call, not_ready(f"no response was read for {seconds:g} s; read all responses, or cancel the call"))

    def delay(self, identity: str) -> float:
        """Count a request; returns the seconds until it is due at the rate that its identity may have."""
        if not identity:
            return 0.0
        now = self._now()
        self._used_until[identity] = until = min(self._next_use(identity), now + MAX_DELAY)
        return max(until - now, 0.0)

    def refuse_if_too_fast(self, identity: str) -> None:
        """Count a request, unless its identity has made too many."""
        if not identity:
            return
        until, rate = self._next_use(identity), self._limits.identity_rate
        if (seconds := until - self._now()) > 0.0:
            text = (
                f"{identity!r} may make {rate:g} requests a second; make fewer, or report several iterations together"
            )
            raise limit_reached("max_identity_rate", f"{text}, or see the option --max-identity-rate", seconds)
        self._used_until[identity] = until

    def _next_use(self, identity: str) -> float:
        """Until when an identity has used its rate if it makes one more request now."""
        idle_since = self._now() - BURST_SECONDS
        if len(self._used_until) > self._limits.calls:
            self._used_until = {name: until for name, until in self._used_until.items() if until > idle_since}
        return max(self._used_until.get(identity, idle_since), idle_since) + 1 / self._limits.identity_rate

    def refuse_unless_open(self) -> None:
        """Refuse a call while the server starts or stops."""
        if not self.is_open:
            raise not_ready("the server is stopping" if self._draining else "the server is starting")

    def refused(self, failure: StatusError, about: dict[str, str]) -> None:
        """Count a call that was refused, and log it unless such a line was written a moment ago."""
        self._count_refusal(failure.reason)
        now = self._now()
        if now - self._logged.get(failure.reason, -math.inf) > LOG_SECONDS:
            self._logged[failure.reason] = now
            log.info("refused, %s: %s", failure.code.name, failure.text, extra=about)

    async def drain(self, seconds: float) -> None:
        """Refuse calls, end those that wait for something, and after this many seconds those being served, too."""
        self.is_open, self._draining = False, True
        for call in self.calls:
            call.stop_waiting()
        if self.calls:
            await asyncio.wait([call.task for call in self.calls], timeout=seconds)
        for call in self.calls:
            call.end(not_ready("the server is stopping"))
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=LAST_ANSWERS_SECONDS)
