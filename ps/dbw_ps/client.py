"""What a worker imports: its link to the parameter server, which outlives restarts of that and of the network.

```python
with ParameterServer(Connection("ps:50052"), "worker-3") as server:
    while (parameters := server.newer(parameters)) is not None:  # None: training is over
        gradient, loss = compute(parameters.vector)  # until server.is_outdated(parameters)
        server.push(parameters, gradient, loss)
```
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import grpc
import torch
from google.protobuf.message import DecodeError

from dbw.v1 import parameter_server_pb2 as pb
from dbw.v1 import sync_mode_pb2
from dbw.v1.parameter_server_pb2_grpc import ParameterServerServiceStub
from dbw_ps import messages, pieces
from dbw_ps.model import Layout
from dbw_ps.tensors import bytes_of, vector_over
from dbw_runtime.backoff import backoff
from dbw_runtime.channel import Connection
from dbw_runtime.failure import describe, reason_of

log = logging.getLogger("dbw.worker")
SERVICE = "/dbw.v1.ParameterServerService/"
# What no further attempt would change: another process or identity has our id, or the model is another one.
FINAL = ("SESSION_REPLACED", "MODEL_DIFFERS", "INVALID_VALUE", "NOT_OWNER", "NOT_SUPPORTED")
# A worker whose token was never accepted gives up after this time: it is probably the wrong one. That of a worker that
# had joined is probably being renewed.
NEVER_LET_IN_SECONDS = 60.0
CALL_SECONDS = 30.0
LEAVE_SECONDS = 2.0  # who leaves does not wait for what stands still
# A server that answers no heartbeat for this many intervals, and CALL_SECONDS at least, hangs or has ended the session.
SILENT_INTERVALS = 10
# How a call fails whose connection breaks, or is closed by another thread (ValueError).
LOST = (grpc.RpcError, OSError, ValueError)
FIRST_DELAY, LONGEST_DELAY = 0.05, 2.0  # seconds between attempts to join again


class LinkError(Exception):
    """The parameter server will not have this worker; the text says why, and what to do."""


@dataclass(frozen=True, eq=False)
class Parameters:
    """Parameters of one version, and the session that they are valid in."""

    session: pb.JoinResponse
    version: int
    vector: torch.Tensor  # float32: the model's parameters, then its buffers


class Subscription:
    """The stream of parameters of one session, and the newest that came on it. It tells when there is news."""

    def __init__(self, stream: Any, session: pb.JoinResponse, news: threading.Condition) -> None:  # noqa: ANN401
        self._stream, self._session, self._news = stream, session, news
        self._newest: Parameters | None = None
        self.announced = -1  # the newest version whose first piece has come
        self.finished = False  # whether training is over
        self.error: Exception | None = None  # what ended the stream
        threading.Thread(target=self._read, name="dbw parameters", daemon=True).start()

    def newer(self, known: int | None) -> Parameters | None:
        """Wait for newer parameters; None when training is over. Raises what ended the stream."""
        with self._news:
            self._news.wait_for(lambda: self.finished or self.error or self._has_newer(known))
            if self.finished:
                return None
            if not self._has_newer(known):
                assert self.error is not None
                raise self.error
            return self._newest

    def _has_newer(self, known: int | None) -> bool:
        return self._newest is not None and (known is None or self._newest.version > known)

    def _read(self) -> None:
        incoming = Incoming()
        try:
            for message in self._stream:
                parameters = incoming.take(message, self._session)
                with self._news:
                    self.announced = incoming.header.version
                    self.finished |= incoming.header.finished
                    if parameters is not None:
                        self._newest = parameters
                    self._news.notify_all()
            raise ConnectionError("the server has ended the stream")
        except Exception as error:
            with self._news:
                self.error = error
                self._news.notify_all()


class Incoming:
    """A vector of parameters that is being received."""

    def __init__(self) -> None:
        self.header = pb.ParametersHeader()
        self._vector = torch.empty(0, dtype=torch.uint8)
        self._received = 0

    def take(self, message: bytes, session: pb.JoinResponse) -> Parameters | None:
        """Take a piece in; returns the parameters with the last one. ValueError if it is none of this session."""
        piece = pieces.decode(message)
        if piece.header is not None:
            try:
                self.header = pb.ParametersHeader.FromString(bytes(piece.header))
            except DecodeError as error:
                raise ValueError(f"this is not a header of parameters: {error}") from error
            size = messages.layout_from(session.layout).elements * torch.float32.itemsize
            if self.header.total_bytes != size and (self.header.total_bytes or not self.header.finished):
                raise ValueError(f"{self.header.total_bytes} bytes of parameters come, and the model has {size}")
            self._vector = torch.empty(self.header.total_bytes, dtype=torch.uint8)
            self._received = 0
        if piece.offset != self._received or piece.offset + piece.data.nbytes > len(self._vector):
            raise ConnectionError("pieces of parameters are missing")
        if piece.data.nbytes:
            self._vector[piece.offset : piece.offset + piece.data.nbytes] = vector_over(piece.data, torch.uint8)
        self._received += piece.data.nbytes
        if self._received < len(self._vector):
            return None
        return Parameters(session, self.header.version, self._vector.view(torch.float32))


class ParameterServer:
    """A worker's link to its parameter server, for one thread that computes.

    It joins again with the same id whenever the connection or the server was lost, and what was computed meanwhile is
    of no use then. Raises LinkError where that would not help, and when the server was away for longer than `patience`
    seconds, if that is given. The token is read for every call: a worker whose token was refused tries again with the
    one that its file has by then; if none was ever accepted, for a minute at most.
    """

    def __init__(
        self,
        connection: Connection,
        worker_id: str,
        layout: Layout | None = None,
        patience: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection, self._worker_id, self._layout = connection, worker_id, layout
        self._patience, self._now = patience, clock
        self._connect()
        self._session: pb.JoinResponse | None = None
        self._subscription: Subscription | None = None
        self._newest = -1
        self._computing: tuple[int, float] | None = None  # the version that is computed with, and since when
        self._delays, self._was_there = backoff(FIRST_DELAY, LONGEST_DELAY), False
        self._lost_at: float | None = None  # since when the server is away
        self._refused_at: float | None = None  # since when it has answered only that it does not know who we are
        self._told_end = False  # whether a heartbeat's answer said that training is over
        self._news = threading.Condition()  # about anything that somebody who computes may wait for
        self._closing = threading.Event()
        self._joining = threading.Lock()  # so that nobody joins who has left

    def _connect(self) -> None:
        self._channel = self._connection.open()
        self._stub = ParameterServerServiceStub(self._channel)

    @property
    def session(self) -> pb.JoinResponse:
        """What the server told when we joined: our number, the mode, the layout. Joins if need be."""
        while True:
            with self._joining:
                if self._session is not None:
                    return self._session
                if self._closing.is_set():
                    raise LinkError("this worker has left")
                try:
                    return self._join()
                except (grpc.RpcError, OSError) as error:
                    problem = error
                except ValueError as error:
                    if self._closing.is_set():  # `close` did not wait for us, and has closed the channel
                        raise LinkError("this worker has left") from error
                    raise
            self._lost(problem)

    def newer(self, known: Parameters | None) -> Parameters | None:
        """Wait for newer parameters than those that are known; None when training is over.

        From then on until it is pushed or completed, a gradient is being computed: the server is told how long.
        """
        self._computing = None
        while True:
            if self._is_finished:
                return None  # whether the server is still there or not
            session = self.session
            version = known.version if known is not None and known.session is session else None
            try:
                found = self._subscription.newer(version) if self._subscription else self._pull(session, version)
            except LOST as error:
                self._lost(error)
            else:
                self._delays = backoff(FIRST_DELAY, LONGEST_DELAY)
                if found is not None:
                    self._computing = found.version, self._now()
                return found

    @property
    def computing_seconds(self) -> float | None:
        """How long the computation under way has taken; None if there is none. Any thread may ask."""
        computing = self._computing
        return None if computing is None else self._now() - computing[1]

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be computed any more: training is over, or we have left."""
        return self._is_finished or self._closing.is_set()

    @property
    def _is_finished(self) -> bool:
        return self._told_end or (self._subscription is not None and self._subscription.finished)

    def is_outdated(self, parameters: Parameters) -> bool:
        """Whether newer parameters are known to be there, or to come: an unfinished gradient would be late."""
        subscription = self._subscription
        if self.is_over or parameters.session is not self._session or (subscription and subscription.error):
            return True
        announced = subscription.announced if subscription else -1
        return max(announced, self._newest) > parameters.version

    def wait(self, seconds: float, until: Callable[[], bool]) -> bool:
        """Wait this long, or until something is so, such as `is_outdated` or `is_over`; returns whether it is."""
        with self._news:
            return self._news.wait_for(until, seconds)

    def push(
        self,
        parameters: Parameters,
        gradient: torch.Tensor,
        loss: float | None = None,
        batch_size: int = 0,
        part_squared_norms: Sequence[float] = (),
        compute_seconds: float | None = None,
    ) -> "pb.GradientOutcome.ValueType | None":
        """Send a gradient, followed by the model's buffers; returns what became of it, None if the link was lost."""
        if parameters.session is not self._session:
            return None
        vector = on_the_wire(gradient, parameters.session)  # refuses what is no gradient of this model
        compute_seconds = self.computing_seconds if compute_seconds is None else compute_seconds
        self._computing = None
        header = pb.GradientHeader(
            session=parameters.session.session,
            version=parameters.version,
            type=gradient_type(parameters.session),
            total_bytes=vector.nbytes,
            loss=loss,
            batch_size=batch_size,
            part_squared_norms=part_squared_norms,
            compute_seconds=compute_seconds,
        )
        cut = pieces.cut(header, vector)
        try:
            response = self._push_short(next(cut)) if pieces.is_short(vector) else self._push_long(cut)
        except LOST as error:
            self._lost(error)
            return None
        self._newest = max(self._newest, response.version)
        if response.message:
            log.debug("a gradient was not used: %s", response.message, extra={"version": parameters.version})
        outcome: pb.GradientOutcome.ValueType = response.outcome
        return outcome

    def _push_short(self, message: bytes) -> pb.PushGradientResponse:
        """Push a gradient of one message. On the wire it is the same as a stream of one, but it needs no thread."""
        push: Any = self._channel.unary_unary(f"{SERVICE}PushGradient", None, pb.PushGradientResponse.FromString)
        response: pb.PushGradientResponse = push(message, metadata=self._connection.metadata())
        return response

    def _push_long(self, cut: Iterator[bytes]) -> pb.PushGradientResponse:
        """Push a gradient of several messages: its header, and the rest when it is our turn."""
        push: Any = self._channel.stream_unary(f"{SERVICE}PushGradient", None, pb.PushGradientResponse.FromString)
        call: Future[Any] = Future()

        def outgoing() -> Iterator[bytes]:
            yield next(cut)
            call.result().initial_metadata()  # comes when the server has room, or with its answer
            yield from cut

        call.set_result(push.future(outgoing(), metadata=self._connection.metadata()))
        response: pb.PushGradientResponse = call.result().result()
        return response

    def complete(self, parameters: Parameters, interrupted: bool = False, compute_seconds: float | None = None) -> bool:
        """Say that a gradient is too late to be sent, or was interrupted; returns whether the server knows now."""
        if parameters.session is not self._session:
            return False
        compute_seconds = self.computing_seconds if compute_seconds is None else compute_seconds
        self._computing = None
        request = pb.NotifyCompletionRequest(
            session=parameters.session.session,
            version=parameters.version,
            interrupted=interrupted,
            compute_seconds=compute_seconds,
        )
        try:
            response = self._stub.NotifyCompletion(request, **self._settings())
        except LOST as error:
            self._lost(error)
            return False
        self._newest = max(self._newest, response.version)
        return True

    def _join(self) -> pb.JoinResponse:
        layout = None if self._layout is None else messages.layout_message(self._layout)
        session = self._stub.Join(pb.JoinRequest(worker_id=self._worker_id, layout=layout), **self._settings())
        self._session, self._newest, self._was_there = session, -1, True  # at once: who has joined must leave
        self._subscription = self._lost_at = self._refused_at = None
        log.info("joined", extra={"worker": session.worker, "worker_id": self._worker_id})
        if session.sync_mode != sync_mode_pb2.SYNC_MODE_PULL:
            subscribe: Any = self._channel.unary_stream(f"{SERVICE}Subscribe", pb.SubscribeRequest.SerializeToString)
            stream = subscribe(pb.SubscribeRequest(session=session.session), metadata=self._connection.metadata())
            self._subscription = Subscription(stream, session, self._news)
        threading.Thread(target=self._beat, args=(session,), name="dbw heartbeat", daemon=True).start()
        return session

    def _pull(self, session: pb.JoinResponse, version: int | None) -> Parameters | None:
        pull: Any = self._channel.unary_stream(f"{SERVICE}PullParameters", pb.PullParametersRequest.SerializeToString)
        request = pb.PullParametersRequest(session=session.session, known_version=version)
        incoming, found = Incoming(), None
        for message in pull(request, metadata=self._connection.metadata()):
            found = incoming.take(message, session)
        if incoming.header.finished:
            return None
        if found is None:
            raise ConnectionError("pieces of parameters are missing")
        return found

    def _beat(self, session: pb.JoinResponse) -> None:
        """Say that we are alive and what we do, as long as this is our session."""
        answered = self._now()
        longest_silence = max(CALL_SECONDS, SILENT_INTERVALS * session.heartbeat_interval_seconds)
        while not self._closing.wait(session.heartbeat_interval_seconds) and self._session is session:
            begin, computing = self._now(), self._computing
            request = pb.HeartbeatRequest(session=session.session)
            if computing is not None:
                request.computing_version, request.computing_seconds = computing[0], begin - computing[1]
            try:
                response = self._stub.Heartbeat(request, **self._settings())
            except LOST:  # whoever waits for parameters mostly notices as well
                if self._now() - answered > longest_silence:
                    self._reconnect(session)
                continue
            answered = begin
            with self._news:
                self._told_end |= response.finished
                if self._session is session:
                    self._newest = max(self._newest, response.version)
                self._news.notify_all()

    def _reconnect(self, session: pb.JoinResponse) -> None:
        """Break off all calls of a session, which may wait for ever, so that the thread that computes joins again."""
        with self._joining:
            if self._session is not session or self._closing.is_set():
                return
            log.warning("the parameter server %s does not answer", self._connection.target)
            self._session, channel = None, self._channel
            self._connect()
        channel.close()
        with self._news:
            self._news.notify_all()

    def _lost(self, error: Exception) -> None:
        """Take note that the link was lost, and wait a little; raises if it is for good."""
        self._session = None
        if reason_of(error) in FINAL:
            raise LinkError(describe(error)) from error
        now, is_refused = self._now(), _is_unauthenticated(error)
        is_news = self._lost_at is None or (is_refused and self._refused_at is None)
        self._lost_at = now if self._lost_at is None else self._lost_at
        self._refused_at = None if not is_refused else now if self._refused_at is None else self._refused_at
        self._give_up_in_time(now, error)
        text = "the parameter server %s was lost, joining again: %s"
        if self._refused_at is not None:
            advice = f"{self._connection.token_file or '--token-file'} must have a token that it knows"
            text = f"the parameter server %s does not let this worker in, trying again; {advice}: %s"
        elif not self._was_there:
            text = "the parameter server %s cannot be reached, trying again; does it run, and use TLS as we do? %s"
        level = logging.WARNING if is_news else logging.DEBUG
        log.log(level, text, self._connection.target, describe(error), extra={"worker_id": self._worker_id})
        self._closing.wait(next(self._delays))

    def _give_up_in_time(self, now: float, error: Exception) -> None:
        """Raise if the server has been away, or has not let us in, for long enough."""
        assert self._lost_at is not None
        is_away, limit, since = "could not be reached", self._patience, self._lost_at
        if self._refused_at is not None:
            is_away = "did not let this worker in"
            if not self._was_there and (limit is None or limit > NEVER_LET_IN_SECONDS):
                limit, since = NEVER_LET_IN_SECONDS, self._refused_at
        if limit is not None and now - since > limit:
            text = f"the parameter server {self._connection.target} {is_away} for {limit:g} s: {describe(error)}"
            raise LinkError(text) from error

    def _settings(self, seconds: float | None = None) -> dict[str, Any]:
        return {"timeout": CALL_SECONDS if seconds is None else seconds, "metadata": self._connection.metadata()}

    def close(self, reason: str = "") -> None:
        """Leave, so that nobody waits for us. Any thread may say so; the one that computes is told."""
        self._closing.set()
        with self._news:
            self._news.notify_all()
        joined = self._joining.acquire(timeout=LEAVE_SECONDS)  # otherwise closing the channel breaks the call off
        session, self._session = self._session, None
        if joined:
            self._joining.release()
        if session is not None:
            with suppress(grpc.RpcError, OSError):
                request = pb.LeaveRequest(session=session.session, reason=reason)
                self._stub.Leave(request, **self._settings(LEAVE_SECONDS))
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        stopped = isinstance(error, SystemExit | KeyboardInterrupt)
        self.close("" if error is None else "stopped" if stopped else repr(error))


def _is_unauthenticated(error: Exception) -> bool:
    """Whether the server does not know who we are."""
    return isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAUTHENTICATED


def on_the_wire(vector: torch.Tensor, session: pb.JoinResponse) -> memoryview:
    """A gradient and the model's buffers as bytes: the gradient in the type that the server would like."""
    layout = messages.layout_from(session.layout)
    if not isinstance(vector, torch.Tensor) or vector.shape != (layout.elements,):
        raise ValueError(f"a gradient must be a tensor of {layout.elements} elements, as the parameters are")
    kind = messages.TYPES[gradient_type(session)]
    vector = vector.detach().to("cpu", torch.float32).contiguous()
    if kind is not torch.float32:
        trained = layout.parameter_elements
        parts = [vector[:trained].to(kind).view(torch.uint8), vector[trained:].view(torch.uint8)]
        vector = torch.cat(parts)
    return bytes_of(vector)


def gradient_type(session: pb.JoinResponse) -> "pb.ElementType.ValueType":
    """The type of gradients on the wire: the one that the server would like, if we know it."""
    return session.gradient_type if session.gradient_type in messages.TYPES else pb.ELEMENT_TYPE_FLOAT32
