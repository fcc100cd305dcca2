"""How gradients come in: a few at a time, whole or not at all."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
from dbw_ps.rounds import Verdict
from dbw_ps.turns import Turn, Turns
from dbw_runtime.failure import invalid_value
from dbw_runtime.rpc import Call

log = logging.getLogger(__name__)
Outcome = tuple["pb.GradientOutcome.ValueType", str]  # and why, where the gradient is not used


class Intake:
    """Receives gradients: long ones in the order in which they begin, `staged_gradients` of them at once.

    The others wait in their workers. That bounds the memory, and the k-th gradient is there earlier than if all of them
    shared the wire. A slow one does not keep them waiting, see `Turns`.
    """

    def __init__(self, options: PsOptions, layout: Layout, collector: GradientCollector, metrics: Metrics) -> None:
        self._job, self._layout, self._collector, self._metrics = options.job, layout, collector, metrics
        self._timeout = 2 * options.worker_timeout  # a worker of which nothing at all comes times out before
        self._turns = Turns(options.staged_gradients, self._timeout)
        self._begun: dict[Turn, asyncio.Event] = {}
        self._limits: dict[Turn, asyncio.Timeout] = {}  # of those that have begun
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, member: Member, header: pb.GradientHeader, first: Piece, call: Call) -> Outcome:
        """Receive a gradient as long as it can be used; returns what became of it. Raises if it was lost on the way."""
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
            self._collector.failed(member, header.version, error.fate)
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
        ended = asyncio.ensure_future(self._collector.iteration_over.wait())
        receiving = asyncio.ensure_future(self._receive_pieces(member, gradient, call))
        try:
            await call.wait(asyncio.wait([receiving, ended], return_when=asyncio.FIRST_COMPLETED))
            if receiving.done():
                receiving.result()  # or what went wrong
        finally:
            ended.cancel()
            receiving.cancel()
            await asyncio.wait([receiving])  # before anything else is sent on this call
            _ = receiving.cancelled() or receiving.exception()  # nobody else looks at it

    async def _receive_pieces(self, member: Member, gradient: IncomingGradient, call: Call) -> None:
        async with self._turn(member, gradient):
            with self._metrics.staged.track_inprogress():
                await call.accept()  # which the worker waits for
                while not gradient.is_complete:
                    self._take_piece(gradient, await self._next_piece(call))
                    member.heard = self._collector.now()

    @asynccontextmanager
    async def _turn(self, member: Member, gradient: IncomingGradient) -> AsyncIterator[None]:
        turn = self._turns.ask(member.number)
        begun = self._begun[turn] = asyncio.Event()
        try:
            self._update_turns()
            await begun.wait()
            async with asyncio.timeout(None) as self._limits[turn]:
                self._update_turns()
                yield
        except TimeoutError:
            self._turns.broken_off(turn)
            raise BrokenOffError("the gradient was broken off, it took far too long") from None
        finally:
            del self._begun[turn]
            self._limits.pop(turn, None)
            self._turns.end(turn, self._collector.now(), gradient.is_complete)
            self._update_turns()

    def _update_turns(self) -> None:
        """Let those begin whose turn it is, and set the limits of all, which depend on who waits."""
        for turn in self._turns.begin(self._collector.now()):
            self._begun[turn].set()
        loop, ahead = asyncio.get_running_loop(), self._turns.wake_at - self._collector.now()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if ahead == math.inf else loop.call_later(ahead, self._update_turns)
        for turn, limit in self._limits.items():
            if not limit.expired():
                limit.reschedule(loop.time() + self._turns.ends_at(turn) - self._collector.now())

    async def _next_piece(self, call: Call) -> Piece:
        try:
            async with asyncio.timeout(self._timeout):
                piece = piece_from(await call.read_bytes())
        except TimeoutError:
            why = f"no piece came for {self._timeout:g} seconds"
            raise BrokenOffError(f"the gradient was broken off, {why}") from None
        if piece is None:  # also how the call of a worker ends that was killed
            raise BrokenOffError("the gradient has broken off, pieces are missing at its end")
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
