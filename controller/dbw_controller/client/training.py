"""What a parameter server sees of its job, and what is logged about it, however it is connected to the controller."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc

from dbw.v1.controller_pb2 import CoordinateRequest, CreateJobResponse
from dbw.v1.iteration_pb2 import Decision
from dbw_controller.client.conversation import Conversation, Link, Summary
from dbw_controller.client.settings import ClientSettings, delays, look_delays
from dbw_controller.client.waiting import Wait
from dbw_runtime.failure import describe, reason_of

log = logging.getLogger("dbw.client")
LINK_CHANGES = {
    Link.ATTACHING: (logging.INFO, "the connection has ended, attaching again: %s"),
    Link.DOWN: (logging.WARNING, "cannot attach, trying again: %s"),
}
OTHERS = {
    Link.REPLACED: "another process has taken the job %s over: no decisions until that one has gone; if both are to"
    " train, give each a job of its own (--job): %s",
    Link.TAKEN: "another identity has a job called %s: no decisions until that is gone; choose another name"
    " (--job): %s",
}


class Training:
    """A job, as far as threads and asyncio do not differ."""

    def __init__(self, settings: ClientSettings, conversation: Conversation) -> None:
        self._settings, self._connection = settings, settings.connection()
        self._conversation = conversation
        self._was_on_fallback = False
        self._last_decision: Decision | None = None
        self._published_at: float | None = None  # this iteration's parameters, if it was said
        self._waits = delays()  # seconds until each of the next attempts to attach

    def _now(self) -> float:
        """The time, in seconds on a monotonic clock."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The job's name."""
        return self._conversation.name

    @property
    def iteration(self) -> int:
        """The current iteration."""
        return self._conversation.iteration

    @property
    def k(self) -> int:
        """How many gradients to wait for in this iteration."""
        return self._conversation.k

    @property
    def deadline_seconds(self) -> float | None:
        """When to end this iteration with what has arrived, or else with the first gradient; None: wait for k.

        On fallback it is the last one, unless that was for fewer gradients: workers may hang without a controller, too.
        """
        decision = self.decision if self.decision is not None else self._last_decision
        if decision is None or not decision.HasField("deadline_seconds") or decision.k < self.k:
            return None
        return decision.deadline_seconds

    @property
    def missing(self) -> int:
        """How many gradients of this iteration have not `arrived` yet, of the k to wait for."""
        return self._wait.missing

    @property
    def decision(self) -> Decision | None:
        """The controller's decision in use, with its reason; None on fallback.

        It is for an earlier iteration where the one for this iteration was not there when that began.
        """
        return self._conversation.decision

    @property
    def on_fallback(self) -> bool:
        """Whether k is no decision of the controller's: it has not made one yet, or is gone."""
        return self._conversation.on_fallback

    @property
    def replaced(self) -> bool:
        """Whether another process has created the same job, or another identity has one of this name.

        This one is on fallback, and attaches once the other has gone. It looks after about 30 seconds, then less and
        less often, every four minutes at least.
        """
        return self._conversation.link.is_others

    @property
    def problem(self) -> str | None:
        """What is wrong with the connection to the controller, if anything is."""
        return self._conversation.problem

    def arrived(self, seconds: float, worker: int | None = None, iteration: int | None = None) -> None:
        """A gradient arrived, this many seconds after its parameters were published.

        One of an earlier iteration is late, and is reported as well. Arrivals are sent when the iteration ends.
        """
        self._conversation.arrived(seconds, worker, iteration)

    def published(self) -> float:
        """This iteration's parameters have been published, just now: its deadline counts from here. Returns when.

        Then `end_iteration` knows how many gradients there were, and whether the deadline has ended the iteration.
        """
        self._published_at = self._now()
        return self._published_at

    @property
    def _elapsed(self) -> float:
        if self._published_at is None:
            raise RuntimeError(f"iteration {self.iteration} has no beginning: call `published` with its parameters")
        return self._now() - self._published_at

    @property
    def _wait(self) -> Wait:
        return Wait(self.k, self.deadline_seconds, self._conversation.arrived_seconds)

    def _completed(self, summary: Summary) -> Summary:
        if self._published_at is None:
            return summary
        return {"published_seconds": self._published_at, **self._wait.completed(summary)}

    def set_workers(self, workers: int | Sequence[int]) -> None:
        """Workers came or went: how many are alive now, or their numbers."""
        self._conversation.set_workers(workers)

    @contextmanager
    def _warning(self, problem: str) -> Iterator[None]:
        """Log that a call has failed; training goes on without what it was for."""
        try:
            yield
        except (grpc.RpcError, OSError) as error:
            log.warning("%s: %s", problem, describe(error), extra={"job": self.name})

    def _begin_iteration(self) -> int:
        self._published_at = None
        k = self._conversation.begin_iteration(self._now())
        self._last_decision = self.decision if self.decision is not None else self._last_decision
        self._log_fallback()
        return k

    def _imported(self, decision: Decision) -> None:
        self._conversation.imported(decision)
        if not self.on_fallback:
            self._log_fallback()

    def _created(self, response: CreateJobResponse) -> CoordinateRequest | None:
        """Take in a session; returns the request to repeat, if there is one."""
        if self.replaced:
            self._waits = delays()
            log.info("whoever had the job has gone, attached again", extra=self._extra())
        return self._conversation.created(response, self._now())

    def _failed(self, error: Exception) -> None:
        before, text = self._conversation.link, describe(error)
        refused = self._conversation.failed(self._now(), text, reason_of(error))
        link = self._conversation.link
        if link is not before and link in OTHERS:
            self._waits = look_delays(self._settings.silent_job_seconds)
            log.warning(OTHERS[link], self.name, text, extra=self._extra())
        elif link is not before:
            log.log(*LINK_CHANGES[link], text, extra=self._extra())
        if refused:
            log.error("a request was refused: %s", text, extra=self._extra())

    def _log_fallback(self) -> None:
        if self.on_fallback and not self._was_on_fallback and not self.replaced:
            log.warning("on fallback, k = %s: %s", self.k, self.problem, extra=self._extra())
        elif self._was_on_fallback and not self.on_fallback:
            log.info("decisions of the controller again", extra=self._extra())
        self._was_on_fallback = self.on_fallback

    def _extra(self) -> dict[str, object]:
        return {"job": self.name, "iteration": self.iteration}
