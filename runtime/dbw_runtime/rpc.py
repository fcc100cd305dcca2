"""From an rpc on the wire to a method of a service, and from what that raises to a status.

A service has one method for each rpc, named like it in snake case: `async def end_iteration(self, request, call)`
returns the response. One with a stream of requests gets only the call and reads them from it; one with a stream of
responses writes them to it.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from dbw_runtime.failure import StatusError, invalid_value
from dbw_runtime.gate import Gate
from dbw_runtime.wire_scan import require_few_fields

log = logging.getLogger(__name__)
T = TypeVar("T")
MessageType = TypeVar("MessageType", bound=Message)
ServicerContext = Any  # grpc.aio.ServicerContext, whose type hints lack what it can do with bytes


class Call:
    """One rpc that is being served."""

    def __init__(self, context: ServicerContext, gate: Gate, is_stream: bool) -> None:
        self.caller = gate.authenticate(context)
        self.identity = self.caller.identity
        self._context, self._gate, self.is_stream = context, gate, is_stream
        task = asyncio.current_task()
        assert task is not None, "gRPC serves every call in a task"
        self.task: asyncio.Task[Any] = task
        self._waits = False
        self._is_accepted = False
        self.job: str | None = None  # for the log
        self.ended_by: Exception | None = None
        gate.tasks.add(task)
        task.add_done_callback(self._sent)
        gate.admit(self)

    def _sent(self, task: "asyncio.Task[Any]") -> None:
        """The status is sent, or the client has gone."""
        self._gate.tasks.discard(task)
        self._gate.discard(self)

    async def only_request(self, kind: type[MessageType]) -> MessageType:
        """The request of a call that has one."""
        data = await self.read_bytes()
        self._gate.refuse_if_too_fast(self.identity)
        if data is None:
            raise invalid_value("", f"there is no request; send a {kind.DESCRIPTOR.full_name}")
        return parsed(kind, data)

    async def read(self, kind: type[MessageType]) -> MessageType | None:
        """The next request of a stream; None after the last one. One of an identity that is too fast has to wait."""
        data = await self.wait(self._read_in_turn())
        return None if data is grpc.aio.EOF else parsed(kind, data)

    async def read_bytes(self) -> bytes | None:
        """The next request of a stream as it came; None after the last one."""
        data = await self.wait(self._read())
        return None if data is grpc.aio.EOF else data

    async def _read(self) -> Any:  # noqa: ANN401 (bytes, or gRPC's EOF)
        data = await self._context.read()
        self._gate.heard(self)
        return data

    async def _read_in_turn(self) -> Any:  # noqa: ANN401
        data = await self._read()
        if (seconds := self._gate.delay(self.identity)) > 0:
            await asyncio.sleep(seconds)
        await self._gate.turns.turn()
        return data

    async def accept(self) -> None:
        """Let the caller know, ahead of any response, that its requests are being read."""
        self._is_accepted = True
        sending = asyncio.ensure_future(self._context.send_initial_metadata(()))
        sending.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # otherwise asyncio complains if the client has gone
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            # Otherwise gRPC does not know that it was sent, sends it again with the status, and fails to send that.
            await asyncio.wait([sending])
            raise

    async def write(self, response: Message) -> None:
        """Send a response on a stream."""
        await self.write_bytes(response.SerializeToString())

    async def write_bytes(self, response: bytes) -> None:
        """Send a response on a stream that is serialised already."""
        try:
            if not self._is_accepted:  # a first response that is cut off would have the same effect as in `accept`
                await self.accept()
            self._gate.begin_response(self)
            await self._context.write(response)
        except grpc.aio.InternalError:  # what gRPC calls a client that has gone
            raise asyncio.CancelledError from None
        finally:
            self._gate.end_response(self)

    async def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for something that may take long, unless the server stops."""
        self._waits = True
        try:
            if not self._gate.is_open:
                coroutine.close()  # nobody will wait for it
                self._gate.refuse_unless_open()
            return await coroutine
        except asyncio.CancelledError:
            self._gate.refuse_unless_open()
            raise
        finally:
            self._waits = False

    def end(self, error: Exception) -> None:
        """End the call with an error, whatever it does. gRPC sends no status for a task that is only cancelled."""
        self.ended_by = error
        self.task.cancel()

    def end_waiting(self, error: Exception) -> None:
        """End the call with an error if it waits, so that nothing is left half done."""
        if self._waits:
            self.end(error)

    def stop_waiting(self) -> None:
        """End the call if it waits."""
        if self._waits:
            self.task.cancel()


def handlers(
    service: ServiceDescriptor,
    implementation: object,
    gate: Gate,
    translate: Callable[[Exception], StatusError | None] = lambda _: None,
) -> dict[str, Any]:
    """What serves each rpc of a service. `translate` knows what the implementation's own errors mean."""
    return {method.name: _handler(method, implementation, gate, translate) for method in service.methods}


def add_service(server: grpc.aio.Server, service: ServiceDescriptor, methods: dict[str, Any]) -> None:
    """Serve the rpcs of a service. gRPC accepts calls of each of them apart, so that none waits for another's."""
    server.add_registered_method_handlers(service.full_name, methods)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service.full_name, methods)])
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_client_that_has_gone)


def _is_no_client_that_has_gone(record: logging.LogRecord) -> bool:
    """Whether gRPC says something else than that a client did not wait for its answer, which it calls an error."""
    gone = grpc.aio.InternalError, asyncio.CancelledError
    return record.exc_info is None or not isinstance(record.exc_info[1], gone)


def _handler(
    method: MethodDescriptor, implementation: object, gate: Gate, translate: Callable[[Exception], StatusError | None]
) -> Any:  # noqa: ANN401 (the type has no public name)
    function = getattr(implementation, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.name).lower())
    request_type: type[Message] = GetMessageClass(method.input_type)

    def described(error: Exception, call: Call | None) -> StatusError:
        return error if isinstance(error, StatusError) else translate(error) or _bug(error, method, call)

    async def serve(_: object, context: ServicerContext) -> bytes | None:
        call = None
        try:
            call = Call(context, gate, method.client_streaming)
            if method.client_streaming:
                answering = function(call)
            else:
                answering = function(await call.only_request(request_type), call)  # which may let go of the request
            response: Message | None = await answering
        except asyncio.CancelledError:
            if call is None or call.ended_by is None:
                raise  # the client has gone
            failure = described(call.ended_by, call)
        except Exception as error:
            failure = described(error, call)
        else:
            gate.begin_response(call)  # also where only the status is left to be sent
            return None if response is None else response.SerializeToString()
        # Outside the `except`, so that what is aborted does not drag the error along.
        gate.refused(failure, _extra(call) | {"rpc": method.name, "peer": context.peer()})
        try:
            await context.abort(failure.code, failure.text, failure.trailers())
        except grpc.aio.InternalError:  # the client has gone meanwhile
            raise asyncio.CancelledError from None
        raise AssertionError("abort raises")

    # A call with one request is on the wire what a stream of one is. gRPC would read that request before it calls us.
    if method.server_streaming:
        return grpc.stream_stream_rpc_method_handler(serve)
    return grpc.stream_unary_rpc_method_handler(serve)


def parsed(kind: type[MessageType], data: bytes) -> MessageType:
    """The message that bytes hold; refuses others, and those that would become very many objects."""
    require_few_fields(kind, data)
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise invalid_value("", f"the request is not a {kind.DESCRIPTOR.full_name}: {error}") from None


def _bug(error: Exception, method: MethodDescriptor, call: Call | None) -> StatusError:
    correlation_id = secrets.token_hex(8)
    extra = _extra(call) | {"rpc": method.name, "correlation_id": correlation_id}
    log.error("a bug: please report it with this traceback", exc_info=error, extra=extra)
    text = f"internal error; the server's log has more under the correlation id {correlation_id}"
    return StatusError(grpc.StatusCode.INTERNAL, "BUG", text, metadata={"correlation_id": correlation_id})


def _extra(call: Call | None) -> dict[str, str]:
    return {} if call is None or call.job is None else {"job": call.job}
