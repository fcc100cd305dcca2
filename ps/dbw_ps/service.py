"""ParameterServerService: every rpc, thin over the parts that do the work."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import grpc

from dbw.v1 import parameter_server_pb2 as pb
from dbw_controller.core.spec import SyncMode
from dbw_controller.wire.messages import SYNC_MODES
from dbw_ps import messages
from dbw_ps.collector import NoUsableGradientsError
from dbw_ps.decider import Source
from dbw_ps.intake import Intake, piece_from
from dbw_ps.members import (
    InvalidWorkerError,
    Member,
    Members,
    NotOwnerError,
    SessionNotFoundError,
    SessionReplacedError,
    TooManyWorkersError,
)
from dbw_ps.metrics import Metrics
from dbw_ps.model import Layout
from dbw_ps.norms import warm_up
from dbw_ps.options import PsOptions
from dbw_ps.publisher import OBSERVERS, Publication, Publisher
from dbw_ps.trainer import Trainer
from dbw_runtime.failure import StatusError, invalid_value, limit_reached
from dbw_runtime.rpc import Call, parsed

log = logging.getLogger(__name__)
SOURCES = {source: pb.DecisionSource.Value(f"DECISION_SOURCE_{source.name}") for source in Source}
# This many heartbeats come within the time-out.
HEARTBEATS = 5
# A worker whose stream breaks has this long to send a message, or to join again: mostly it is dead.
BROKEN_SECONDS = 2.0
# A worker needs two, beside those that have broken off and were not seen to end yet. Each may take a message's memory.
CALLS_PER_WORKER = 16
# When to try again to join a training that has as many workers as it may have: its server has to be restarted first.
FULL_RETRY_SECONDS = 60.0


class ParameterServerService:
    """Serves the workers of one training."""

    descriptor = pb.DESCRIPTOR.services_by_name["ParameterServerService"]

    def __init__(
        self,
        options: PsOptions,
        layout: Layout,
        trainer: Trainer,
        members: Members,
        intake: Intake,
        publisher: Publisher,
        metrics: Metrics,
    ) -> None:
        self._options, self._layout, self._sync_mode = options, layout, SyncMode(options.sync_mode)
        self._trainer, self._members, self._intake = trainer, members, intake
        self._publisher, self._metrics, self._now = publisher, metrics, trainer.now
        self._calls: dict[int, set[Call]] = {}  # of each worker

    def translate(self, error: Exception) -> StatusError | None:
        """What an error means to a caller; None if it is a bug."""
        match error:
            case InvalidWorkerError():
                return invalid_value("worker_id", str(error))
            case SessionNotFoundError():
                return StatusError(grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND", str(error))
            case SessionReplacedError():
                return StatusError(grpc.StatusCode.ABORTED, "SESSION_REPLACED", str(error))
            case NotOwnerError():
                return StatusError(grpc.StatusCode.PERMISSION_DENIED, "NOT_OWNER", str(error))
            case TooManyWorkersError():
                return limit_reached("max_workers", str(error), FULL_RETRY_SECONDS)
        return None

    async def warm_up(self) -> None:
        """Begin to train as soon as there are workers."""
        await asyncio.to_thread(warm_up)
        await self._trainer.prepare()
        self._training = asyncio.ensure_future(self._trainer.run(self._start_over))
        self._watching = asyncio.ensure_future(self._watch_workers())

    async def done(self) -> None:
        """Return when training is over and the workers know it, or raise what went wrong."""
        try:
            await asyncio.shield(self._training)
        except NoUsableGradientsError as error:
            log.error("training has failed: %s", error, extra={"job": self._options.job})
            raise
        if self._publisher.is_finished:
            status = self._trainer.status()
            about = {"iteration": status.iteration, "loss": status.loss, "seconds": round(status.seconds, 3)}
            log.info("training is over", extra={"job": self._options.job, **about})
            if self._members.any_to_notify:
                log.info("waiting for workers to take notice, up to %g s", self._options.linger_seconds)
            deadline = self._now() + self._options.linger_seconds
            while self._members.any_to_notify and self._now() < deadline:
                await asyncio.sleep(min(0.05, self._options.linger_seconds))
        else:
            await asyncio.Event().wait()

    async def finish(self) -> None:
        """Stop training at a point from which it can be resumed."""
        self._watching.cancel()
        self._trainer.stop()
        await asyncio.wait([self._training])
        await self._trainer.finish()

    async def _watch_workers(self) -> None:
        interval = min(self._options.worker_timeout / HEARTBEATS, BROKEN_SECONDS / 2)
        while True:
            due = self._now() + interval
            await asyncio.sleep(interval)
            if (late := self._now() - due) > interval:  # this process stood still, and not its workers
                self._members.postpone(late, self._now())
            for member in self._members.expire(self._now()):
                log.warning("worker timed out", extra=self._about(member))
                self._metrics.timed_out.inc()
                self._trainer.membership_changed(member)
                self._end_calls(member, SessionNotFoundError())
            self._find_stalled()
            self._trainer.give_way_if_replaced()

    def _find_stalled(self) -> None:
        now = self._now()
        for member in self._members.find_stalled(now):
            about = self._about(member)
            if member.number in self._members.stalled:
                about |= {"version": member.pace.version, "busy_seconds": round(member.pace.busy_seconds(now), 3)}
                log.warning("worker stalled", extra=about)
            else:
                log.info("worker is no longer stalled", extra=about)
            self._trainer.live_workers_changed()

    def _made_progress(self, member: Member) -> None:
        if member.number in self._members.stalled:
            self._find_stalled()

    def _about(self, member: Member) -> dict[str, object]:
        return {"job": self._options.job, "worker": member.number, "worker_id": member.id}

    def _member(self, session: str, call: Call) -> Member:
        call.job = self._options.job
        return self._members.of(session, self._now(), call.identity)

    def _start_over(self, worker: int, why: str = "no gradient of this iteration can be used") -> None:
        """End a worker's session, so that it joins again and gets the parameters again."""
        member = self._members.numbered(worker)
        self._members.leave(member)
        self._trainer.membership_changed(member)
        self._end_calls(member, SessionNotFoundError(f"{why}, and the session has ended"))

    def _end_calls(self, member: Member, error: Exception) -> None:
        for call in self._calls.pop(member.number, set()):
            call.end(error)

    @contextmanager
    def _serving(self, member: Member, call: Call) -> Iterator[None]:
        """Remember that a call is a worker's, to end it with the worker's session."""
        calls = self._calls.setdefault(member.number, set())
        if len(calls) >= CALLS_PER_WORKER:
            text = f"{CALLS_PER_WORKER} calls with parameters or gradients of this worker are open already; end some"
            raise limit_reached("calls_per_worker", text, retry_seconds=1.0)
        calls.add(call)
        try:
            yield
        finally:
            calls.discard(call)

    async def join(self, request: pb.JoinRequest, call: Call) -> pb.JoinResponse:
        """Make the caller a worker."""
        call.job = self._options.job
        if request.HasField("layout"):
            difference = messages.layout_difference(self._layout, request.layout)
            if difference is not None:
                text = f"the worker's model is another one: {difference}; start both with the same model"
                raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, "MODEL_DIFFERS", text)
        member, session = self._members.join(request.worker_id, self._now(), call.identity)
        self._end_calls(member, SessionReplacedError(member.id))
        log.info("a worker has joined", extra=self._about(member))
        self._trainer.membership_changed(member)
        return pb.JoinResponse(
            session=session,
            worker=member.number,
            sync_mode=SYNC_MODES[self._sync_mode],
            layout=messages.layout_message(self._layout),
            gradient_type=pb.ElementType.Value(f"ELEMENT_TYPE_{self._options.gradient_type.upper()}"),
            heartbeat_interval_seconds=self._options.worker_timeout / HEARTBEATS,
        )

    async def leave(self, request: pb.LeaveRequest, call: Call) -> pb.LeaveResponse:
        """End a worker's session."""
        member = self._member(request.session, call)
        self._members.leave(member)
        log.info("a worker has left: %s", request.reason[:200] or "no reason given", extra=self._about(member))
        self._trainer.membership_changed(member)
        self._end_calls(member, SessionNotFoundError())
        return pb.LeaveResponse()

    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatResponse:
        """Take note that a worker is alive, and what it does."""
        member = self._member(request.session, call)
        if request.HasField("computing_version") and request.HasField("computing_seconds"):
            member.pace.compute(request.computing_version, request.computing_seconds, self._now())
        else:
            member.pace.wait()
        self._made_progress(member)
        return pb.HeartbeatResponse(version=self._version, finished=self._publisher.is_finished)

    async def subscribe(self, request: pb.SubscribeRequest, call: Call) -> None:
        """Send parameters whenever there are newer ones."""
        if self._sync_mode is SyncMode.PULL:
            text = "parameters are pulled in this training, with PullParameters, not pushed"
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, "NOT_SUPPORTED", text)
        known = request.known_version if request.HasField("known_version") else None
        member = self._member(request.session, call)
        with self._serving(member, call):
            try:
                await self._send_all(member, known, call)
            except asyncio.CancelledError:
                self._members.suspect(request.session, self._now(), BROKEN_SECONDS)
                raise

    async def _send_all(self, member: Member, known: int | None, call: Call) -> None:
        while True:  # until the worker's session ends, which ends its calls
            publication = await call.wait(self._publisher.newer(known))
            if publication.finished and known == publication.version:
                await call.write_bytes(publication.farewell())
                return
            self._begins_to_send(publication, member)
            if await self._send(publication, call, unless_replaced=True):
                known = publication.version
                member.pace.sent(self._now())
                if publication.finished:
                    return

    def _begins_to_send(self, publication: Publication, member: Member) -> None:
        member.version = publication.version
        member.pace.send(publication.version, self._now())

    async def _send(self, publication: Publication, call: Call, unless_replaced: bool = False) -> bool:
        """Send the pieces of a vector; returns whether all were sent, and not cut off because there are newer ones."""
        count, sent = len(publication.pieces), 0
        for piece in publication.pieces:
            if unless_replaced and publication is not self._publisher.current:
                break
            await call.write_bytes(piece)
            self._metrics.sent.inc(len(piece))
            sent += 1
        return sent == count

    async def pull_parameters(self, request: pb.PullParametersRequest, call: Call) -> None:
        """Send the newest parameters once."""
        member = self._member(request.session, call) if request.session else None
        if member is not None and self._sync_mode is not SyncMode.PULL:
            text = "parameters are pushed in this training, see Subscribe; observers have no session"
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, "NOT_SUPPORTED", text)
        known = request.known_version if request.HasField("known_version") else None
        with self._serving(member, call) if member is not None else nullcontext():
            await self._send_newest(member, known, call)
            if member is not None:
                member.pace.sent(self._now())

    async def _send_newest(self, member: Member | None, known: int | None, call: Call) -> None:
        is_sent = False
        while not is_sent:  # it is cut off where it would be one version too many in memory, and newer ones follow
            publication = await call.wait(self._publisher.newer(known))
            if member is not None:
                self._begins_to_send(publication, member)
            if publication.finished and known == publication.version:
                await call.write_bytes(publication.farewell())
                return
            with self._publisher.fetching(publication, OBSERVERS if member is None else member.number):
                is_sent = await self._send(publication, call)

    @property
    def _version(self) -> int:
        current = self._publisher.current
        return current.version if current is not None else self._trainer.status().iteration

    async def push_gradient(self, call: Call) -> pb.PushGradientResponse:
        """Take one gradient."""
        piece = piece_from(await call.read_bytes())
        if piece is None or piece.header is None:
            raise invalid_value("header", "the first request must have a header")
        header = parsed(pb.GradientHeader, bytes(piece.header))
        member = self._member(header.session, call)
        seconds = header.compute_seconds if header.HasField("compute_seconds") else None
        member.pace.finish(header.version, seconds, self._now())
        self._made_progress(member)
        with self._serving(member, call):
            try:
                outcome, message = await self._intake.take(member, header, piece, call)
            except BaseException as error:
                is_stopping = isinstance(error, StatusError) and error.reason == "NOT_READY"
                has_joined_again = member.session != header.session  # and is expected to send it
                if not (is_stopping or has_joined_again):
                    self._lost_gradient(member, header, error)
                raise
        return pb.PushGradientResponse(outcome=outcome, message=message, version=self._version)

    def _lost_gradient(self, member: Member, header: pb.GradientHeader, error: BaseException) -> None:
        """Let a worker begin again whose gradient was lost on its way: it might wait for newer parameters for ever."""
        self._trainer.gradient_lost(member, header.version)
        self._metrics.gradients.labels("lost").inc()
        log.warning("a gradient was lost: %s", str(error) or "its worker has gone", extra=self._about(member))
        if self._members.is_open(header.session):
            self._start_over(member.number, "a gradient was lost")

    async def notify_completion(self, request: pb.NotifyCompletionRequest, call: Call) -> pb.NotifyCompletionResponse:
        """Take note of a gradient that is not sent."""
        member = self._member(request.session, call)
        computed = request.HasField("compute_seconds") and not request.interrupted
        member.pace.finish(request.version, request.compute_seconds if computed else None, self._now())
        self._made_progress(member)
        self._intake.completed(member, request.version, request.interrupted)
        return pb.NotifyCompletionResponse(version=self._version)

    async def get_status(self, request: pb.GetStatusRequest, call: Call) -> pb.GetStatusResponse:
        """Say how the training goes."""
        call.job = self._options.job
        now, training = self._now(), self._trainer.status()
        status = pb.GetStatusResponse(
            job=self._options.job,
            phase=pb.TRAINING_PHASE_WAITING_FOR_WORKERS,
            sync_mode=SYNC_MODES[self._sync_mode],
            iteration=training.iteration,
            k=training.k,
            live_workers=training.live_workers,
            loss=training.loss,
            checkpoint_iteration=training.checkpoint_iteration,
            checkpoint_age_seconds=training.checkpoint_age,
            missing_workers=training.missing_workers,
            stalled_workers=training.stalled_workers,
        )
        if training.source is not None:
            status.phase, status.decision_source = pb.TRAINING_PHASE_TRAINING, SOURCES[training.source]
        if self._publisher.is_finished:
            status.phase = pb.TRAINING_PHASE_FINISHED
        if request.include_workers:
            workers = (messages.worker_message(member, self._members, now) for member in self._members.all)
            status.workers.extend(workers)
        return status
