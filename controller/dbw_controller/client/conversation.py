"""What a parameter server tells the controller and what it is told, whatever the connection does meanwhile.

This holds no socket, thread or clock. Drivers (sync.py, aio.py) send what it returns and hand in what they receive.
"""

import logging
import math
from collections.abc import Sequence
from enum import Enum
from typing import Literal, TypedDict, Unpack

from dbw.v1.controller_pb2 import CoordinateRequest, CreateJobRequest, CreateJobResponse
from dbw.v1.iteration_pb2 import (
    END_CAUSE_K_REACHED,
    Arrivals,
    Decision,
    EndCause,
    GradientMoments,
    IterationSummary,
    Membership,
)
from dbw.v1.job_pb2 import JobSpec
from dbw_controller.contract import NAME, NAME_RULE
from dbw_runtime.failure import describe, reason_of

log = logging.getLogger("dbw.client")
Fallback = Literal["last", "all"]
# The controller ignores arrivals of iterations that are further back.
REMEMBERED_ITERATIONS = 1024
# Arrivals to keep while nobody takes them: together they must fit into one message.
MOST_BATCHES, MOST_ROWS = 256, 50_000


# Why a request would be refused again, by our own reasons and by gRPC.
REFUSALS = ("STALE_ITERATION", "INVALID_VALUE", "LIMIT_REACHED", "BUG")
TOO_LARGE = "RESOURCE_EXHAUSTED"


class Link(Enum):
    """How the connection is."""

    ATTACHING = "attaching"
    ATTACHED = "attached"
    DOWN = "down"  # the last attempt to attach has failed
    OVER = "over"  # for good


class Summary(TypedDict, total=False):
    """What can be told of an iteration that ended; see iteration.proto for each."""

    k: int  # how many gradients were averaged; without it, as many as decided
    duration_seconds: float  # when the wait was over; without it, with the k-th arrival
    loss: float | None  # mean over the averaged workers
    learning_rate: float | None
    effective_learning_rate: float | None  # of the plain SGD that moves as far
    mean_squared_norm: float | None  # ‖ḡ‖²
    sum_squared_norms: float | None  # Σ‖g_j‖², or
    variance: float | None  # Σ‖g_j − ḡ‖²/(k−1)
    within_worker_variance: float | None  # the variance inside the workers' mini-batches, with
    degrees_of_freedom: int  # how much that is worth
    end_cause: EndCause.ValueType  # why the wait was over, if not because k was reached
    published_seconds: float | None  # when the parameters were published, on any clock
    lost_gradients: int


class Conversation:
    """One training job, from the parameter server's side."""

    def __init__(
        self, name: str, workers: int | Sequence[int], spec: JobSpec | None, iteration: int, fallback: Fallback
    ) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"the job's name is {name!r}; it must be {NAME_RULE}")
        if fallback not in ("last", "all"):
            raise ValueError(f"fallback is {fallback!r}; it must be 'last' or 'all'")
        self.name, self._spec, self._fallback = name, spec or JobSpec(), fallback
        self.iteration = iteration
        self.membership = _membership(workers)
        self.k = max(self.membership.live_workers, 1)
        self.decision: Decision | None = None  # for this iteration; None while on fallback
        self.link = Link.ATTACHING
        self.problem: str | None = None
        self.session = ""
        self._begins = True  # whether the next attachment begins at `iteration`, with idle workers
        self._previous_k: int | None = None
        self._told: Membership | None = None  # what the controller was told last
        self._arrived: dict[int, list[float]] = {}  # times of each iteration's arrivals so far
        self._fresh: dict[int, Arrivals] = {}  # not sent yet
        self._unacknowledged: list[Arrivals] = []  # sent, but perhaps not received
        self._in_flight: CoordinateRequest | None = None  # the request that has no answer yet
        self._asked = True  # whether the answer to it, or to the attachment, decides for this iteration
        self._settled = False  # whether k is in use already
        self._was_on_fallback = False

    @property
    def on_fallback(self) -> bool:
        """Whether k is not a decision of the controller."""
        return self.decision is None

    @property
    def awaits_decision(self) -> bool:
        """Whether it makes sense to wait: the decision was asked for, and nothing says that it will not come."""
        return self.decision is None and self._asked and self.link in (Link.ATTACHING, Link.ATTACHED)

    def create_request(self) -> CreateJobRequest:
        """What (re-)attaches to the job."""
        iteration = self.iteration if self._begins else None
        self._told = self.membership
        return CreateJobRequest(job=self.name, spec=self._spec, membership=self.membership, iteration=iteration)

    def created(self, response: CreateJobResponse) -> CoordinateRequest | None:
        """Take in a session; returns the request to repeat, if there is one."""
        self.session = response.session
        self.link, self.problem = Link.ATTACHED, None
        if self._begins:
            self._take(response.job.decision)
        self._begins = False
        if self._in_flight is not None:
            self._in_flight.session = self.session
            self._tell_membership(self._in_flight)
        return self._in_flight

    def failed(self, error: Exception) -> None:
        """Take note that an attempt to attach, or the stream, has failed."""
        reason, text = reason_of(error), describe(error)
        self.problem = text
        if reason == "SESSION_REPLACED":
            self.link = Link.OVER
            log.error("another process has taken over, there will be no more decisions: %s", text, extra=self._extra())
        elif self.link is Link.ATTACHED:
            self.link = Link.ATTACHING
            log.info("the connection has ended, attaching again: %s", text, extra=self._extra())
        elif self.link is Link.ATTACHING:
            self.link = Link.DOWN
            log.warning("cannot attach, trying again: %s", text, extra=self._extra())
        if self._in_flight is not None and (reason in REFUSALS or text.startswith(TOO_LARGE)):
            self._forget_arrivals(self._in_flight)
            self._in_flight, self._asked = None, False
            self._begins |= reason == "STALE_ITERATION"  # the job is one of an earlier training
            log.error("a request was refused: %s", text, extra=self._extra())

    def arrived(self, seconds: float, worker: int | None, iteration: int | None) -> None:
        """Take in an arrival, to be sent with the next request."""
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"seconds is {seconds!r}; it must be the time since the parameters were published")
        iteration = self.iteration if iteration is None else iteration
        if not 0 <= iteration <= self.iteration:
            raise ValueError(f"iteration is {iteration}; it must be between 0 and the current one, {self.iteration}")
        if worker is not None and not 0 <= worker < 2**32:
            raise ValueError(f"worker is {worker}; it must be the worker's number, between 0 and 2^32 − 1")
        times = self._arrived.setdefault(iteration, [])
        known = self._fresh.get(iteration)
        if known is not None and bool(known.workers) != (worker is not None):
            raise ValueError("worker must be given for all arrivals of an iteration, or for none")
        batch = self._fresh.setdefault(iteration, Arrivals(iteration=iteration, preceding=len(times)))
        times.append(seconds)
        batch.seconds.append(seconds)
        if worker is not None:
            batch.workers.append(worker)

    def set_workers(self, workers: int | Sequence[int]) -> None:
        """Take note of who is alive."""
        self.membership = _membership(workers)
        self.k = min(self.k, max(self.membership.live_workers, 1))

    def end_iteration(self, summary: IterationSummary) -> CoordinateRequest | None:
        """End the current iteration; returns the request to send, or None while an earlier one has no answer."""
        arrivals = _newest([*self._unacknowledged, *self._fresh.values()])
        self._unacknowledged, self._fresh = arrivals, {}
        request = CoordinateRequest(job=self.name, session=self.session, arrivals=arrivals, summary=summary)
        self._tell_membership(request)
        self.iteration, self._previous_k = self.iteration + 1, summary.k
        self.decision, self._settled = None, False
        self._arrived.pop(self.iteration - REMEMBERED_ITERATIONS, None)
        self._asked = self.link is not Link.ATTACHED or self._in_flight is None
        if not self._asked:
            return None
        self._in_flight = request  # where there is no connection, it is sent as soon as there is one
        return request if self.link is Link.ATTACHED else None

    def summary(self, **told: Unpack[Summary]) -> IterationSummary:
        """The current iteration, at its end."""
        if unknown := told.keys() - Summary.__annotations__.keys():
            names = ", ".join(Summary.__annotations__)
            raise TypeError(f"an iteration has no {min(unknown)!r} that could be told; there are {names}")
        k = told.get("k", self.k)
        if k < 1:
            raise ValueError(f"k is {k}; it must be how many gradients were averaged, at least 1")
        times = self._arrived.get(self.iteration, [])
        if "duration_seconds" not in told and not times:
            raise ValueError(
                f"duration_seconds is needed where no arrivals of iteration {self.iteration} were reported"
            )
        seconds = told.get("duration_seconds", times[min(k, len(times)) - 1] if times else 0.0)
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(
                f"duration_seconds is {seconds!r}; it must be the time since the parameters were published"
            )
        return IterationSummary(
            iteration=self.iteration,
            k=k,
            duration_seconds=seconds,
            end_cause=told.get("end_cause", END_CAUSE_K_REACHED),
            fallback=self.on_fallback,
            published_seconds=told.get("published_seconds"),
            previous_k=self._previous_k,
            loss=told.get("loss"),
            learning_rate=told.get("learning_rate"),
            effective_learning_rate=told.get("effective_learning_rate"),
            moments=_moments(told),
            lost_gradients=told.get("lost_gradients", 0),
        )

    def decided(self, decision: Decision) -> None:
        """Take in an answer, which may come too late to be of use."""
        asked = self._in_flight
        if asked is not None and decision.iteration == asked.summary.iteration + 1:
            self._in_flight = None
            self._forget_arrivals(asked)
            if asked.HasField("membership"):
                self._told = asked.membership
        self._take(decision)

    def _forget_arrivals(self, request: CoordinateRequest) -> None:
        """Do not send the arrivals of a request again."""
        sent = {(batch.iteration, batch.preceding) for batch in request.arrivals}
        self._unacknowledged = [b for b in self._unacknowledged if (b.iteration, b.preceding) not in sent]

    def _tell_membership(self, request: CoordinateRequest) -> None:
        request.ClearField("membership")
        if self._told != self.membership:
            request.membership.CopyFrom(self.membership)

    def imported(self, decision: Decision) -> None:
        """Take in the decision that a state was imported for; k may change in the middle of an iteration."""
        if decision.iteration == self.iteration:  # otherwise the next one is waited for
            self._settled = False
            self._take(decision)
            self.settle()

    def _take(self, decision: Decision) -> None:
        if decision.iteration == self.iteration and not self._settled:
            self.decision, self.problem = decision, None

    def settle(self) -> int:
        """The k to use, now that waiting is over."""
        self._settled = True
        workers = max(self.membership.live_workers, 1)
        if self.decision is None and self.link is Link.ATTACHING:
            self.link = Link.DOWN  # whoever has waited once need not wait again
        was_on_fallback, self._was_on_fallback = self._was_on_fallback, self.on_fallback
        if self.decision is not None:
            self.k = max(min(self.decision.k, workers), 1)
            if was_on_fallback:
                log.info("decisions of the controller again", extra=self._extra())
        else:
            self.k = min(self.k, workers) if self._fallback == "last" else workers
            self.problem = self.problem or "no answer within the deadline"
            if not was_on_fallback:
                log.warning("on fallback, k = %s: %s", self.k, self.problem, extra=self._extra())
        return self.k

    def _extra(self) -> dict[str, object]:
        return {"job": self.name, "iteration": self.iteration}


def _moments(told: Summary) -> GradientMoments | None:
    mean, squares, variance = told.get("mean_squared_norm"), told.get("sum_squared_norms"), told.get("variance")
    if mean is None:
        return None
    moments = GradientMoments(mean_squared_norm=mean)
    if squares is not None:
        moments.sum_squared_norms = squares
    elif variance is not None:
        moments.variance = variance
    within = told.get("within_worker_variance")
    if within is not None:
        moments.within_worker.variance = within
        moments.within_worker.degrees_of_freedom = told.get("degrees_of_freedom", 0)
    return moments


def _newest(batches: list[Arrivals]) -> list[Arrivals]:
    """As many of the newest arrivals as may be sent together."""
    rows = 0
    for i, batch in enumerate(reversed(batches)):
        rows += len(batch.seconds)
        if rows > MOST_ROWS or i == MOST_BATCHES:
            return batches[len(batches) - i :]
    return batches


def _membership(workers: int | Sequence[int]) -> Membership:
    if isinstance(workers, int):
        if workers < 0:
            raise ValueError(f"workers is {workers}; it must be how many are alive, or their numbers")
        return Membership(live_workers=workers)
    if len(set(workers)) != len(workers) or not all(0 <= number < 2**32 for number in workers):
        raise ValueError(f"workers is {workers!r}; it must be how many are alive, or the different numbers of those")
    return Membership(live_workers=len(workers), workers=workers)
