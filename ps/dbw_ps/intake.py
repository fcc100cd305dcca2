"""How gradients come in: a few at a time, whole or not at all."""

import asyncio
import logging

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import pieces
from dbw_ps.gradient import IncomingGradient, MalformedError, RejectedError
from dbw_ps.members import Member
from dbw_ps.messages import OUTCOMES
from dbw_ps.metrics import Metrics
from dbw_ps.pieces import Piece
from dbw_ps.rounds import Verdict
from dbw_ps.trainer import Trainer
from dbw_runtime.failure import invalid_value
from dbw_runtime.rpc import Call

log = logging.getLogger(__name__)
Outcome = tuple["pb.GradientOutcome.ValueType", str]  # and why, where the gradient is not used


class Intake:
    """Receives gradients, `staged` of them at once.

    Transfers get in, in the order in which they begin; flow control holds the others back in their workers. That bounds
    the memory, and the k-th gradient is there earlier than if all of them shared the wire.
    """

    def __init__(self, trainer: Trainer, staged: int, metrics: Metrics) -> None:
        self._trainer, self._metrics = trainer, metrics
        self._room = asyncio.Semaphore(staged)

    async def take(self, member: Member, header: pb.GradientHeader, first: Piece, call: Call) -> Outcome:
        """Receive a gradient as long as it can be used; returns what became of it."""
        outcome = await self._take(member, header, first, call)
        name = pb.GradientOutcome.Name(outcome[0]).removeprefix("GRADIENT_OUTCOME_")
        self._metrics.gradients.labels(name.lower()).inc()
        return outcome

    async def _take(self, member: Member, header: pb.GradientHeader, first: Piece, call: Call) -> Outcome:
        trainer, version = self._trainer, header.version
        verdict = trainer.rounds.verdict(member.number, version)
        if verdict is Verdict.USED:
            ended = asyncio.ensure_future(trainer.ended.wait())
            receiving = asyncio.ensure_future(self._receive(member, header, first, call))
            try:
                await call.wait(asyncio.wait([receiving, ended], return_when=asyncio.FIRST_COMPLETED))
                if receiving.done():
                    return _outcome(receiving.result())
            except RejectedError as error:
                trainer.rejected(member, version)
                about = {"worker": member.number, "worker_id": member.id, "version": version}
                log.warning("a gradient was rejected: %s", error, extra=about)
                return error.outcome, str(error)
            except BaseException:  # the worker has gone, or the server stops
                trainer.lost(member, version)
                self._metrics.gradients.labels("lost").inc()
                raise
            finally:
                ended.cancel()
                receiving.cancel()
            verdict = Verdict.LATE  # the iteration has ended meanwhile
        if verdict is Verdict.LATE:
            trainer.late(member, version)
        return _outcome(verdict)

    async def _receive(self, member: Member, header: pb.GradientHeader, first: Piece, call: Call) -> Verdict:
        gradient = IncomingGradient(header, self._trainer.model.layout)
        await self._room.acquire()
        self._metrics.staged.inc()
        try:
            piece: Piece | None = first
            while piece is not None:
                gradient.take(piece)
                self._metrics.received.inc(piece.data.nbytes)
                piece = None if gradient.is_complete else piece_from(await call.read_bytes())
            if not gradient.is_complete:
                raise MalformedError("pieces are missing at its end")
        except BaseException:
            self._leave()
            raise
        return self._trainer.arrived(member, header.version, gradient, then=self._leave)

    def _leave(self) -> None:
        self._metrics.staged.dec()
        self._room.release()


def _outcome(verdict: Verdict) -> Outcome:
    return OUTCOMES[verdict], "" if verdict is Verdict.USED else verdict.value


def piece_from(message: bytes | None) -> Piece | None:
    """The piece that a request holds; None after the last one. Refuses other bytes."""
    try:
        return None if message is None else pieces.decode(message)
    except pieces.PieceError as error:
        raise invalid_value("", f"the request is no piece of a gradient: {error}") from None
