"""How gradients come in: a few at a time, whole or not at all."""

import asyncio
import logging

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import pieces
from dbw_ps.collector import GradientCollector
from dbw_ps.gradient import BrokenOffError, IncomingGradient, RejectedError
from dbw_ps.members import Member
from dbw_ps.messages import OUTCOMES
from dbw_ps.metrics import Metrics
from dbw_ps.model import Layout
from dbw_ps.options import PsOptions
from dbw_ps.pieces import Piece
from dbw_ps.rounds import Fate, Verdict
from dbw_runtime.failure import StatusError, invalid_value
from dbw_runtime.rpc import Call

log = logging.getLogger(__name__)
Outcome = tuple["pb.GradientOutcome.ValueType", str]  # and why, where the gradient is not used


class Intake:
    """Receives gradients: long ones in the order in which they begin, `staged_gradients` of them at once.

    The others wait in their workers. That bounds the memory, and the k-th gradient is there earlier than if all of them
    shared the wire.
    """

    def __init__(self, options: PsOptions, layout: Layout, collector: GradientCollector, metrics: Metrics) -> None:
        self._job, self._layout, self._collector, self._metrics = options.job, layout, collector, metrics
        self._room = asyncio.Semaphore(options.staged_gradients)
        self._timeout = 2 * options.worker_timeout  # a worker of which nothing at all comes times out before

    async def take(self, member: Member, header: pb.GradientHeader, first: Piece, call: Call) -> Outcome:
        """Receive a gradient as long as it can be used; returns what became of it."""
        try:
            verdict = self._collector.verdict(member, header.version)
            if verdict is Verdict.USED:
                gradient = IncomingGradient(header, self._layout)
                self._take_piece(gradient, first)
                if not gradient.is_complete:
                    await self._receive_rest(member, gradient, call)
                    verdict = self._collector.verdict(member, header.version)  # by now
            if verdict is Verdict.USED:
                self._collector.use(member, gradient.whole)
            elif verdict is Verdict.LATE:
                self._collector.late(member, header.version)
            outcome = OUTCOMES[verdict], "" if verdict is Verdict.USED else verdict.value
        except RejectedError as error:
            broken_off = isinstance(error, BrokenOffError)  # also how the call of a worker ends that was killed
            self._collector.failed(member, header.version, Fate.LOST if broken_off else Fate.REJECTED)
            about = {"job": self._job, "worker": member.number, "worker_id": member.id}
            log.warning("a gradient was rejected: %s", error, extra=about | {"version": header.version})
            outcome = error.outcome, str(error)
        name = pb.GradientOutcome.Name(outcome[0]).removeprefix("GRADIENT_OUTCOME_")
        self._metrics.gradients.labels(name.lower()).inc()
        return outcome

    def completed(self, member: Member, version: int, interrupted: bool) -> None:
        """Take note of a gradient that a worker does not send."""
        self._collector.completed(member, version, interrupted)
        self._metrics.gradients.labels("interrupted" if interrupted else "notified").inc()

    async def _receive_rest(self, member: Member, gradient: IncomingGradient, call: Call) -> None:
        """Receive a long gradient, unless its iteration ends before all of it is there."""
        session = member.sessions
        ended = asyncio.ensure_future(self._collector.iteration_over.wait())
        receiving = asyncio.ensure_future(self._receive_pieces(gradient, call))
        try:
            await call.wait(asyncio.wait([receiving, ended], return_when=asyncio.FIRST_COMPLETED))
            if receiving.done():
                receiving.result()  # or what went wrong
        except RejectedError:
            raise
        except BaseException as error:
            stops = isinstance(error, StatusError) and error.reason == "NOT_READY"  # we do, and not the worker
            if not stops and member.sessions == session:  # otherwise it has joined again, and is waited for
                self._collector.failed(member, gradient.header.version, Fate.LOST)
                self._metrics.gradients.labels("lost").inc()
            raise
        finally:
            ended.cancel()
            receiving.cancel()
            await asyncio.wait([receiving])  # before anything else is sent on this call
            _ = receiving.cancelled() or receiving.exception()  # nobody else looks at it

    async def _receive_pieces(self, gradient: IncomingGradient, call: Call) -> None:
        async with self._room:
            with self._metrics.staged.track_inprogress():
                await call.accept()  # which the worker waits for
                while not gradient.is_complete:
                    self._take_piece(gradient, await self._next_piece(call))

    async def _next_piece(self, call: Call) -> Piece:
        try:
            async with asyncio.timeout(self._timeout):  # others wait for its place
                piece = piece_from(await call.read_bytes())
        except TimeoutError:
            raise BrokenOffError(f"no piece of it came for {self._timeout:g} seconds") from None
        if piece is None:
            raise BrokenOffError("pieces are missing at its end")
        return piece

    def _take_piece(self, gradient: IncomingGradient, piece: Piece) -> None:
        gradient.take(piece)
        self._metrics.received.inc(piece.data.nbytes)


def piece_from(message: bytes | None) -> Piece | None:
    """The piece that a request holds; None after the last one. Refuses other bytes."""
    try:
        return None if message is None else pieces.decode(message)
    except pieces.PieceError as error:
        raise invalid_value("", f"the request is not a piece of a gradient: {error}") from None
