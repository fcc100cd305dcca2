"""A parameter server's side of the protocol with the controller: what to send, and which k to use, whatever fails.

This holds no socket, thread, clock or logger. Drivers (sync.py, aio.py) send what it returns, hand in what they receive
and tell the time, in seconds on any monotonic clock. `tests/conversations/` shows it at work, in scripts that the
examples in other languages follow as well.
"""

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
    EndedIteration,
    GradientMoments,
    IterationSummary,
    Membership,
)
from dbw.v1.job_pb2 import Job, JobSpec
from dbw_controller.client.successor import SILENT_SECONDS as SILENT_JOB_SECONDS
from dbw_controller.client.successor import Successor
from dbw_controller.contract import NAME, NAME_RULE

Fallback = Literal["last", "all"]
# The controller ignores arrivals of iterations that are further back.
REMEMBERED_ITERATIONS = 1024
# Iterations to report later, while there is no answer: together they must fit into one message, in which a batch of
# arrivals takes the room of some arrivals.
MAX_ITERATIONS, MAX_ROWS, BATCH_ROWS = 256, 50_000, 12
# An iteration waits for its decision for a share of the last one's time, and for this many seconds where that is less.
MIN_PATIENCE = 0.001
DEFAULT_PATIENCE_SHARE, DEFAULT_DEADLINE = 0.05, 1.0
EVERY_DECISION = 1e9  # as a share: the deadline alone counts, for trainings that take no time or must be repeatable
# Exponential backoff: after n timed-out waits in a row, skip waiting for the next 2^n − 1 requests, at most this many.
MAX_SKIPPED_WAITS = 63
# A controller that leaves a request unanswered for longer than both has stopped answering: seconds, and a multiple of
# what its last answer took.
SILENT_SECONDS, SILENT_FACTOR = 10.0, 5.0
# Why a request would be refused again: reasons of error.proto, and gRPC's code for a message that is too large.
REFUSALS = ("STALE_ITERATION", "INVALID_VALUE", "LIMIT_REACHED", "BUG")
TOO_LARGE = "RESOURCE_EXHAUSTED"


class Link(Enum):
    """The connection to the controller."""

    ATTACHING = "attaching"
    ATTACHED = "attached"
    DOWN = "down"  # the last attempt to attach has failed, or took too long
    REPLACED = "replaced"  # another process has created the same job: there are no decisions until that one has gone
    TAKEN = "taken"  # another identity has a job of this name: there are no decisions until that is gone

    @property
    def is_others(self) -> bool:
        """Whether the job is somebody else's, as far as is known."""
        return self in (Link.REPLACED, Link.TAKEN)


class Summary(TypedDict, total=False):
    """The fields of an iteration's summary that a parameter server sets; see iteration.proto for each."""

    k: int  # how many gradients were averaged; by default the k that was to be waited for
    duration_seconds: float  # when the wait was over; by default with the k-th arrival
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
        self,
        name: str,
        workers: int | Sequence[int],
        spec: JobSpec | None,
        iteration: int,
        fallback: Fallback,
        deadline: float = DEFAULT_DEADLINE,  # how long an iteration waits for its decision, at most
        patience_share: float = DEFAULT_PATIENCE_SHARE,  # and the share of the last iteration's time
        silent_job_seconds: float = SILENT_JOB_SECONDS,  # after which a job that was taken over is taken back
    ) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"the job's name is {name!r}; it must be {NAME_RULE}")
        if fallback not in ("last", "all"):
            raise ValueError(f"fallback is {fallback!r}; it must be 'last' or 'all'")
        self.name, self._spec, self._fallback = name, spec or JobSpec(), fallback
        self._deadline, self._patience_share = deadline, patience_share
        self._silent_job_seconds = silent_job_seconds
        self._successor: Successor | None = None  # while the job is another process's
        self._replaced_in = 0  # the iteration that was under way when it became that
        self._iteration_seconds = 0.0  # that the last iteration took
        self.iteration = iteration
        self.patience = deadline  # how long to wait for the decision for this iteration, at most
        self.membership = _membership(workers)
        self.k = max(self.membership.live_workers, 1)
        self.decision: Decision | None = None  # in use, for this iteration or an earlier one; None while on fallback
        self.link = Link.ATTACHING
        self.problem: str | None = None
        self.session = ""
        self._reset_job = True  # whether the next CreateJob moves the job to `iteration`
        self._previous_k: int | None = None
        self._known_membership: Membership | None = None  # which the controller was sent last
        self._arrival_times: dict[int, list[float]] = {}  # of each iteration so far
        self._unsent: dict[int, Arrivals] = {}
        self._unacknowledged: list[EndedIteration] = []  # which the controller has perhaps not been told of
        self._in_flight: CoordinateRequest | None = None  # the request that has no answer yet
        self._newest: Decision | None = None  # the newest that was received; None once the controller is lost
        self._awaited = True  # whether the decision for this iteration was requested, and it has not begun
        self._began_at = 0.0
        self._sent_at = 0.0  # when the request in flight was sent
        self._answer_seconds = 0.0  # how long the last answer took
        self._detached_at = -math.inf  # when the connection ended
        self._timed_out_waits = 0  # in a row
        self._skipped_waits = 0  # how many of the next requests are not waited for

    @property
    def arrived_seconds(self) -> Sequence[float]:
        """When gradients of this iteration arrived, in order, since its parameters were published."""
        return self._arrival_times.get(self.iteration, ())

    @property
    def on_fallback(self) -> bool:
        """Whether k is not a decision of the controller."""
        return self.decision is None

    @property
    def awaits_decision(self) -> bool:
        """Whether to wait for a decision: it was requested, and nothing says that it will not come in time."""
        return self._awaited and self.link in (Link.ATTACHING, Link.ATTACHED)

    def create_request(self) -> CreateJobRequest:
        """What attaches to the job, for the first time or again."""
        iteration = self.iteration if self._reset_job else None
        self._known_membership = self.membership
        return CreateJobRequest(job=self.name, spec=self._spec, membership=self.membership, iteration=iteration)

    def created(self, response: CreateJobResponse, now: float) -> CoordinateRequest | None:
        """Take in a session; returns the request to repeat, if there is one."""
        self.session, self._sent_at = response.session, now
        self.link, self.problem, self._successor = Link.ATTACHED, None, None
        if self._reset_job:
            self._receive(response.job.decision)
        self._reset_job = False
        if self._in_flight is not None:
            self._in_flight.session = self.session
            self._add_membership(self._in_flight)
        return self._in_flight

    def failed(self, now: float, problem: str, reason: str | None = None) -> bool:
        """An attempt to attach, or the stream, has failed; returns whether a request was refused.

        `problem` begins with gRPC's code where there is one; `reason` is a name of error.proto, without prefix.
        """
        if reason == "NOT_OWNER":
            self.link, self.problem, self._reset_job = Link.TAKEN, problem, True
            return False
        if self.link is Link.REPLACED:  # nobody knows what the successor does meanwhile
            self._successor = Successor(self._silent_job_seconds)
            return False
        self.problem = problem
        was_attached = self.link is Link.ATTACHED  # otherwise CreateJob is what failed
        if reason == "SESSION_REPLACED":
            self.link, self._successor = Link.REPLACED, Successor(self._silent_job_seconds)
            self._replaced_in, self._reset_job = self.iteration, True
        elif was_attached:
            self.link, self._detached_at = Link.ATTACHING, now
        elif self.link is Link.ATTACHING:
            self.link = Link.DOWN
        is_refusal = reason in REFUSALS or problem.startswith(TOO_LARGE)
        if not was_attached or self._in_flight is None or not is_refusal:
            return False
        self._acknowledge(self._in_flight)  # it would be refused again
        self._in_flight, self._newest, self._awaited = None, None, False
        self._reset_job |= reason == "STALE_ITERATION"  # the job is one of an earlier training
        return True

    def may_take_back(self, job: Job | None, now: float) -> bool:
        """Whether to create the job again that another process has taken over: that has gone, and this one trains.

        `job` is the job as it is now, None if there is none.
        """
        if self._successor is None:
            return False
        has_gone = self._successor.has_gone(job, now, self._iteration_seconds)
        return has_gone and self.iteration > self._replaced_in

    def arrived(self, seconds: float, worker: int | None, iteration: int | None) -> None:
        """Take in an arrival, to be sent with the next request."""
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"seconds is {seconds!r}; it must be the time since the parameters were published")
        iteration = self.iteration if iteration is None else iteration
        if not 0 <= iteration <= self.iteration:
            raise ValueError(f"iteration is {iteration}; it must be between 0 and the current one, {self.iteration}")
        if worker is not None and not 0 <= worker < 2**32:
            raise ValueError(f"worker is {worker}; it must be the worker's number, between 0 and 2^32 − 1")
        times = self._arrival_times.setdefault(iteration, [])
        known = self._unsent.get(iteration)
        if known is not None and bool(known.workers) != (worker is not None):
            raise ValueError("worker must be given for all arrivals of an iteration, or for none")
        batch = self._unsent.setdefault(iteration, Arrivals(iteration=iteration, preceding=len(times)))
        times.append(seconds)
        batch.seconds.append(seconds)
        if worker is not None:
            batch.workers.append(worker)

    def set_workers(self, workers: int | Sequence[int]) -> None:
        """Take note of who is alive."""
        self.membership = _membership(workers)
        self.k = min(self.k, max(self.membership.live_workers, 1))

    def end_iteration(self, summary: IterationSummary, now: float) -> CoordinateRequest | None:
        """End the current iteration; returns the request to send, or None while an earlier one has no answer."""
        ended = EndedIteration(arrivals=self._unsent.values(), summary=summary)
        self._unacknowledged, self._unsent = _newest([*self._unacknowledged, ended]), {}
        self.iteration, self._previous_k = self.iteration + 1, summary.k
        self._arrival_times.pop(self.iteration - REMEMBERED_ITERATIONS, None)
        self._iteration_seconds = now - self._began_at
        self.patience = self._patience_for(self._iteration_seconds)
        if self.link is Link.ATTACHED and self._in_flight is not None:
            return None
        request = CoordinateRequest(
            job=self.name,
            session=self.session,
            preceding=self._unacknowledged[:-1],
            arrivals=ended.arrivals,
            summary=summary,
        )
        self._add_membership(request)
        self._in_flight, self._sent_at = request, now
        self._awaited, self._skipped_waits = self._skipped_waits == 0, max(self._skipped_waits - 1, 0)
        return request if self.link is Link.ATTACHED else None  # otherwise it is sent as soon as there is a connection

    def _patience_for(self, iteration_seconds: float) -> float:
        if self._patience_share >= EVERY_DECISION:  # also where the clock is too coarse for an iteration
            return self._deadline
        return min(max(self._patience_share * iteration_seconds, MIN_PATIENCE), self._deadline)

    def summary(self, **fields: Unpack[Summary]) -> IterationSummary:
        """The current iteration, at its end."""
        if unknown := fields.keys() - Summary.__annotations__.keys():
            names = ", ".join(Summary.__annotations__)
            raise TypeError(f"a summary has no field {min(unknown)!r}; there are {names}")
        k = fields.get("k", self.k)
        if k < 1:
            raise ValueError(f"k is {k}; it must be how many gradients were averaged, at least 1")
        times = self._arrival_times.get(self.iteration, [])
        if "duration_seconds" not in fields and not times:
            raise ValueError(f"duration_seconds is needed: no arrivals of iteration {self.iteration} were reported")
        seconds = fields.get("duration_seconds", times[min(k, len(times)) - 1] if times else 0.0)
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"duration_seconds is {seconds!r}; it must be seconds since the parameters were published")
        return IterationSummary(
            iteration=self.iteration,
            k=k,
            duration_seconds=seconds,
            end_cause=fields.get("end_cause", END_CAUSE_K_REACHED),
            fallback=self.on_fallback,
            decision_iteration=self._earlier_decision(),
            published_seconds=fields.get("published_seconds"),
            previous_k=self._previous_k,
            loss=fields.get("loss"),
            learning_rate=fields.get("learning_rate"),
            effective_learning_rate=fields.get("effective_learning_rate"),
            moments=_moments(fields),
            lost_gradients=fields.get("lost_gradients", 0),
        )

    def _earlier_decision(self) -> int | None:
        """The iteration that the decision in use was for, if not the current one."""
        used = None if self.decision is None else self.decision.iteration
        return None if used == self.iteration else used

    def decided(self, decision: Decision, now: float) -> None:
        """Take in an answer. One that comes when its iteration has begun serves the next one."""
        request = self._in_flight
        if request is None or decision.iteration != request.summary.iteration + 1:
            return
        self._in_flight, self._answer_seconds = None, now - self._sent_at
        self._acknowledge(request)
        if request.HasField("membership"):
            self._known_membership = request.membership
        self._receive(decision)

    def _receive(self, decision: Decision) -> None:
        self._newest, self.problem = decision, None
        if decision.iteration == self.iteration and self._awaited:
            self._awaited, self._timed_out_waits = False, 0

    def _acknowledge(self, request: CoordinateRequest) -> None:
        """Do not report again what a request has reported."""
        last = request.summary.iteration
        self._unacknowledged = [ended for ended in self._unacknowledged if ended.summary.iteration > last]

    def _add_membership(self, request: CoordinateRequest) -> None:
        request.ClearField("membership")
        if self._known_membership != self.membership:
            request.membership.CopyFrom(self.membership)

    def imported(self, decision: Decision) -> None:
        """Take in the decision that a state was imported for; k may change in the middle of an iteration."""
        oldest = 0 if self._newest is None else self._newest.iteration
        if oldest <= decision.iteration <= self.iteration:
            self._receive(decision)
            if decision.iteration == self.iteration:
                self._use_newest()

    def begin_iteration(self, now: float) -> int:
        """Stop waiting for a decision; returns the k to use in this iteration."""
        if self.awaits_decision:  # the wait has timed out
            self._timed_out_waits += 1
            self._skipped_waits = min(2**self._timed_out_waits - 1, MAX_SKIPPED_WAITS)
        self._awaited, self._began_at = False, now
        if self.link is Link.ATTACHING and now - self._detached_at >= self._deadline:
            self.link = Link.DOWN
        silent = self.link is Link.ATTACHED and self._is_silent(now)
        if silent or self.link is Link.DOWN or self.link.is_others:
            self._newest = None
        self._use_newest()
        if self.decision is None:
            self.problem = self.problem or "the controller does not answer"
        return self.k

    def _is_silent(self, now: float) -> bool:
        """Whether the controller has left a request unanswered for much longer than usual."""
        patience = max(SILENT_SECONDS, SILENT_FACTOR * self._answer_seconds)
        return self._in_flight is not None and now - self._sent_at > patience

    def _use_newest(self) -> None:
        """Let the newest decision, or the fallback, give k."""
        self.decision = self._newest
        workers = max(self.membership.live_workers, 1)
        if self.decision is not None:
            self.k = max(min(self.decision.k, workers), 1)
        else:
            self.k = min(self.k, workers) if self._fallback == "last" else workers


def _moments(fields: Summary) -> GradientMoments | None:
    mean, squares, variance = fields.get("mean_squared_norm"), fields.get("sum_squared_norms"), fields.get("variance")
    if mean is None:
        return None
    moments = GradientMoments(mean_squared_norm=mean)
    if squares is not None:
        moments.sum_squared_norms = squares
    elif variance is not None:
        moments.variance = variance
    if (within := fields.get("within_worker_variance")) is not None:
        moments.within_worker.variance = within
        moments.within_worker.degrees_of_freedom = fields.get("degrees_of_freedom", 0)
    return moments


def _newest(ended: list[EndedIteration]) -> list[EndedIteration]:
    """The newest iterations that fit into one message together, and at least one."""
    rows = 0
    for i, iteration in enumerate(reversed(ended)):
        rows += sum(BATCH_ROWS + len(batch.seconds) for batch in iteration.arrivals)
        if i > 0 and (rows > MAX_ROWS or i == MAX_ITERATIONS):
            return ended[len(ended) - i :]
    return ended


def _membership(workers: int | Sequence[int]) -> Membership:
    if isinstance(workers, int):
        if workers < 0:
            raise ValueError(f"workers is {workers}; it must be how many are alive, or their numbers")
        return Membership(live_workers=workers)
    if len(set(workers)) != len(workers) or not all(0 <= number < 2**32 for number in workers):
        raise ValueError(f"workers is {workers!r}; it must be how many are alive, or the different numbers of those")
    return Membership(live_workers=len(workers), workers=workers)
