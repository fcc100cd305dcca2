"""ParameterServerService: every rpc, thin over the trainer."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

from dbw.v1 import parameter_server_pb2 as pb
from dbw.v1.sync_mode_pb2 import SyncMode as SyncModeMessage
from dbw_controller.core.spec import SyncMode
from dbw_ps import errors, messages
from dbw_ps.decider import Source
from dbw_ps.errors import ModelDiffersError, SessionNotFoundError, SessionReplacedError, WrongModeError
from dbw_ps.intake import Intake, piece_from
from dbw_ps.members import Member
from dbw_ps.metrics import Metrics
from dbw_ps.norms import warm_up
from dbw_ps.publisher import Publication
from dbw_ps.trainer import HopelessError, Trainer
from dbw_runtime.failure import StatusError, invalid_value
from dbw_runtime.rpc import Call, parsed

log = logging.getLogger(__name__)
SOURCES = {source: pb.DecisionSource.Value(f"DECISION_SOURCE_{source.name}") for source in Source}
SYNC_MODES = {mode: SyncModeMessage.Value(f"SYNC_MODE_{mode.name}") for mode in SyncMode}
# Heartbeats come so many times within the time-out.
HEARTBEATS = 5
# A worker whose stream breaks has so long to be heard of, or to join again: mostly it is dead.
BROKEN_SECONDS = 2.0


class Terms(NamedTuple):
    """What workers and their server agree on."""

    job: str
    sync_mode: SyncMode
    gradient_type: "pb.ElementType.ValueType"  # that workers are asked for
    worker_timeout: float  # seconds of silence after which a worker is given up
    staged_gradients: int  # that are received at once
    linger_seconds: float  # to serve workers after training


class ParameterServerService:
    """Serves the workers of one training."""

    descriptor = pb.DESCRIPTOR.services_by_name["ParameterServerService"]

    def __init__(self, trainer: Trainer, terms: Terms, metrics: Metrics) -> None:
        self._trainer, self._members, self._terms, self._metrics = trainer, trainer.members, terms, metrics
        patience = 2 * terms.worker_timeout  # a worker of which nothing at all is heard is given up before
        self._intake = Intake(trainer, terms.staged_gradients, patience, metrics)
        self._calls: dict[int, set[Call]] = {}  # of each worker
        metrics.observe(trainer)

    def translate(self, error: Exception) -> StatusError | None:
        """What an error means to a caller."""
        return errors.failure(error)

    async def warm_up(self) -> None:
        """Begin to train as soon as there are workers."""
        await asyncio.to_thread(warm_up)
        self._training = asyncio.ensure_future(self._trainer.run())
        self._watching = asyncio.ensure_future(self._give_up_silent_workers())

    async def done(self) -> None:
        """Return when training is over and the workers know it, or raise what went wrong."""
        try:
            await asyncio.shield(self._training)
        except HopelessError as error:
            log.error("training has failed: %s", error, extra={"job": self._terms.job})
            raise
        if self._trainer.is_finished:
            progress = self._trainer.progress
            about = {"iteration": progress.iteration, "loss": progress.loss, "seconds": round(progress.seconds, 3)}
            log.info("training is over", extra={"job": self._terms.job, **about})
            if self._members.any_to_tell:
                log.info("waiting for workers to take notice, up to %g s", self._terms.linger_seconds)
            deadline = self._trainer.now() + self._terms.linger_seconds
            while self._members.any_to_tell and self._trainer.now() < deadline:
                await asyncio.sleep(min(0.05, self._terms.linger_seconds))
        else:
            await asyncio.Event().wait()

    async def finish(self) -> None:
        """Stop training at a point from which it can be resumed."""
        self._watching.cancel()
        self._trainer.stop()
        await asyncio.wait([self._training])
        await self._trainer.finish()

    async def _give_up_silent_workers(self) -> None:
        while True:
            await asyncio.sleep(min(self._terms.worker_timeout / HEARTBEATS, BROKEN_SECONDS / 2))
            for member in self._members.expire(self._trainer.now()):
                log.warning("nothing was heard of a worker, it is given up", extra=self._about(member))
                self._metrics.given_up.inc()
                self._trainer.left(member)
                self._end_calls(member, SessionNotFoundError())

    def _about(self, member: Member) -> dict[str, object]:
        return {"job": self._terms.job, "worker": member.number, "worker_id": member.id}

    def _member(self, session: str, call: Call) -> Member:
        call.job = self._terms.job
        return self._members.of(session, self._trainer.now())

    def _end_calls(self, member: Member, error: Exception) -> None:
        for call in self._calls.pop(member.number, set()):
            call.end(error)

    @contextmanager
    def _serving(self, member: Member, call: Call) -> Iterator[None]:
        """Remember that a call is a worker's, to end it should the worker be given up."""
        calls = self._calls.setdefault(member.number, set())
        calls.add(call)
        try:
            yield
        finally:
            calls.discard(call)

    async def join(self, request: pb.JoinRequest, call: Call) -> pb.JoinResponse:
        """Make the caller a worker."""
        call.job = self._terms.job
        layout = self._trainer.model.layout
        if request.HasField("layout"):
            difference = layout.difference(messages.layout_from(request.layout))
            if difference is not None:
                raise ModelDiffersError(difference)
        member, session = self._members.join(request.worker_id, self._trainer.now())
        self._end_calls(member, SessionReplacedError(member.id))
        log.info("a worker has joined", extra=self._about(member))
        self._trainer.joined(member)
        return pb.JoinResponse(
            session=session,
            worker=member.number,
            sync_mode=SYNC_MODES[self._terms.sync_mode],
            layout=messages.layout_message(layout),
            gradient_type=self._terms.gradient_type,
            heartbeat_interval_seconds=self._terms.worker_timeout / HEARTBEATS,
        )

    async def leave(self, request: pb.LeaveRequest, call: Call) -> pb.LeaveResponse:
        """End a worker's session."""
        member = self._member(request.session, call)
        self._members.leave(member)
        log.info("a worker has left: %s", request.reason[:200] or "no reason given", extra=self._about(member))
        self._trainer.left(member)
        self._end_calls(member, SessionNotFoundError())
        return pb.LeaveResponse()

    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatResponse:
        """Take note that a worker is alive."""
        self._member(request.session, call)
        return pb.HeartbeatResponse(version=self._version, finished=self._trainer.is_finished)

    async def subscribe(self, request: pb.SubscribeRequest, call: Call) -> None:
        """Send parameters whenever there are newer ones."""
        if self._terms.sync_mode is SyncMode.PULL:
            raise WrongModeError("parameters are pulled in this training, with PullParameters, not pushed")
        known = request.known_version if request.HasField("known_version") else None
        member = self._member(request.session, call)
        with self._serving(member, call):
            try:
                await self._send_all(member, known, request.session, call)
            except asyncio.CancelledError:
                self._members.suspect(request.session, self._trainer.now(), BROKEN_SECONDS)
                raise

    async def _send_all(self, member: Member, known: int | None, session: str, call: Call) -> None:
        while True:
            publication = await call.wait(self._trainer.publisher.newer(known))
            self._member(session, call)
            if await self._send(publication, known, member, call):
                known = publication.version
                if publication.finished:
                    return

    async def _send(self, publication: Publication, known: int | None, member: Member, call: Call) -> bool:
        """Send parameters, as long as there are no newer ones; returns whether that came to its end."""
        if publication.finished and known == publication.version:
            await call.write_bytes(publication.farewell())
            return True
        member.version = publication.version
        at = 0
        while self._trainer.publisher.current is publication:
            piece = publication.pieces[at]
            await call.write_bytes(piece)
            self._metrics.sent.inc(len(piece))
            at += 1
            if at == len(publication.pieces):
                return True
        return False

    async def pull_parameters(self, request: pb.PullParametersRequest, call: Call) -> None:
        """Send the newest parameters once."""
        member = self._member(request.session, call) if request.session else None
        if member is not None and self._terms.sync_mode is not SyncMode.PULL:
            raise WrongModeError("parameters are pushed in this training, see Subscribe; observers have no session")
        known = request.known_version if request.HasField("known_version") else None
        with self._serving(member, call) if member is not None else nullcontext():
            await self._pull(known, member, call)

    async def _pull(self, known: int | None, member: Member | None, call: Call) -> None:
        publication = await call.wait(self._trainer.publisher.newer(known))
        if member is not None:
            member.version = publication.version
        everything = tuple(publication.pieces)  # also if there are newer ones before it is sent
        if publication.finished and known == publication.version:
            everything = (publication.farewell(),)
        for piece in everything:
            await call.write_bytes(piece)
            self._metrics.sent.inc(len(piece))

    @property
    def _version(self) -> int:
        current = self._trainer.publisher.current
        return current.version if current is not None else self._trainer.progress.iteration

    async def push_gradient(self, call: Call) -> pb.PushGradientResponse:
        """Take one gradient."""
        piece = piece_from(await call.read_bytes())
        if piece is None or piece.header is None:
            raise invalid_value("header", "the first request must have a header")
        header = parsed(pb.GradientHeader, bytes(piece.header))
        member = self._member(header.session, call)
        with self._serving(member, call):
            outcome, message = await self._intake.take(member, header, piece, call)
        return pb.PushGradientResponse(outcome=outcome, message=message, version=self._version)

    async def notify_completion(self, request: pb.NotifyCompletionRequest, call: Call) -> pb.NotifyCompletionResponse:
        """Take note of a gradient that is not sent."""
        self._trainer.completed(self._member(request.session, call), request.version, request.interrupted)
        self._metrics.gradients.labels("interrupted" if request.interrupted else "notified").inc()
        return pb.NotifyCompletionResponse(version=self._version)

    async def get_status(self, request: pb.GetStatusRequest, call: Call) -> pb.GetStatusResponse:
        """Say how the training goes."""
        call.job = self._terms.job
        trainer, now = self._trainer, self._trainer.now()
        status = pb.GetStatusResponse(
            job=self._terms.job,
            phase=self._phase(),
            sync_mode=SYNC_MODES[self._terms.sync_mode],
            iteration=trainer.progress.iteration,
            live_workers=len(self._members.live),
            loss=trainer.progress.loss,
        )
        if trainer.decider is not None:
            status.k, status.decision_source = trainer.k, SOURCES[trainer.decider.source]
        if (checkpoints := trainer.checkpoints) is not None and checkpoints.last_time is not None:
            status.checkpoint_iteration = checkpoints.last_iteration or 0
            status.checkpoint_age_seconds = now - checkpoints.last_time
        if request.include_workers:
            status.workers.extend(messages.worker_message(member, now) for member in self._members.all)
        return status

    def _phase(self) -> "pb.TrainingPhase.ValueType":
        if self._trainer.is_finished:
            return pb.TRAINING_PHASE_FINISHED
        begun = self._trainer.decider is not None
        return pb.TRAINING_PHASE_TRAINING if begun else pb.TRAINING_PHASE_WAITING_FOR_WORKERS
