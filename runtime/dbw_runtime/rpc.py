"""From an rpc on the wire to a method of a service, and from what that raises to a status.

A service has one method for each rpc, named like it in snake case: `async def end_iteration(self, request, call)`
returns the response. One with a stream of requests gets only the call and reads them from it; one with a stream of
responses writes them to it.
"""

import asyncio
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from dbw_runtime.failure import StatusError, invalid_value, limit_reached, not_ready
from dbw_runtime.security import Authenticator
from dbw_runtime.wire_scan import require_few_fields

log = logging.getLogger(__name__)
T = TypeVar("T")
MessageType = TypeVar("MessageType", bound=Message)
ServicerContext = Any  # grpc.aio.ServicerContext, whose type hints lack what it can do with bytes


# After the time to finish: for answers that are on their way, and to tell callers that they are cut off.
LAST_ANSWERS_SECONDS = 0.5


class Gate:
    """Admits calls while the server is ready, and ends those that are left when it stops."""

    def __init__(self, authenticator: Authenticator, max_calls: int, count_refusal: Callable[[str], object]) -> None:
        self._authenticator, self._max_calls, self._count_refusal = authenticator, max_calls, count_refusal
        self._logged: dict[str, float] = {}  # when a refusal was logged last, by its reason
        self.calls: set[Call] = set()  # that were admitted and are being served
        self.tasks: set[asyncio.Task[Any]] = set()  # of all calls, until their status is sent
        self.is_open = False
        self._draining = False

    def admit(self, context: ServicerContext) -> str:
        """The caller's identity; refuses calls that cannot be served."""
        self.refuse_unless_open()
        identity = self._authenticator.identity(context)
        if len(self.calls) >= self._max_calls:
            text = f"{self._max_calls} calls are open already; close some, or see the option --max-calls"
            raise limit_reached("max_calls", text, retry_seconds=1.0)
        return identity

    def refuse_unless_open(self) -> None:
        """Refuse a call while the server starts or stops."""
        if not self.is_open:
            raise not_ready("the server is stopping" if self._draining else "the server is starting")

    def refused(self, failure: StatusError, about: dict[str, str]) -> None:
        """Count a call that was refused, and log it unless such a line was written within the last second."""
        self._count_refusal(failure.reason)
        now = time.monotonic()
        if now - self._logged.get(failure.reason, -math.inf) > 1.0:
            self._logged[failure.reason] = now
            log.info("refused, %s: %s", failure.code.name, failure.text, extra=about)

    async def drain(self, seconds: float) -> None:
        """Refuse calls, end those that wait for something, and after this many seconds those being served, too."""
        self.is_open, self._draining = False, True
        for call in self.calls:
            call.stop_waiting()
        if self.calls:
            await asyncio.wait([call.task for call in self.calls], timeout=seconds)
        for call in self.calls:
            call.end(not_ready("the server is stopping"))
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=LAST_ANSWERS_SECONDS)


class Call:
    """One rpc that is being served."""

    def __init__(self, context: ServicerContext, gate: Gate) -> None:
        self._context, self._gate = context, gate
        task = asyncio.current_task()
        assert task is not None, "gRPC serves every call in a task"
        self.task: asyncio.Task[Any] = task
        gate.tasks.add(self.task)
        self.task.add_done_callback(gate.tasks.discard)
        self._waits = False
        self._is_accepted = False
        self.identity = gate.admit(context)
        self.job: str | None = None  # for the log
        self.ended_by: Exception | None = None

    async def read(self, kind: type[MessageType]) -> MessageType | None:
        """The next request of a stream; None after the last one."""
        data = await self.wait(self._context.read())
        return None if data is grpc.aio.EOF else parsed(kind, data)

    async def read_bytes(self) -> bytes | None:
        """The next request of a stream as it came; None after the last one."""
        data = await self.wait(self._context.read())
        return None if data is grpc.aio.EOF else data

    async def accept(self) -> None:
        """Let the caller know, ahead of any response, that its requests are being read."""
        self._is_accepted = True
        sending = asyncio.ensure_future(self._context.send_initial_metadata(()))
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
            await self._context.write(response)
        except grpc.aio.InternalError:  # what gRPC calls a client that has gone
            raise asyncio.CancelledError from None

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
    service: ServiceDescriptor, implementation: object, gate: Gate, translate: Callable[[Exception], StatusError | None]
) -> grpc.GenericRpcHandler:
    """Serve all rpcs of a service. `translate` knows what the implementation's own errors mean."""
    methods = {method.name: _handler(method, implementation, gate, translate) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _handler(
    method: MethodDescriptor, implementation: object, gate: Gate, translate: Callable[[Exception], StatusError | None]
) -> Any:  # noqa: ANN401 (the type has no public name)
    function = getattr(implementation, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.name).lower())
    request_type: type[Message] = GetMessageClass(method.input_type)

    def described(error: Exception, call: Call | None) -> StatusError:
        return error if isinstance(error, StatusError) else translate(error) or _bug(error, method, call)

    async def serve(request: Any, context: ServicerContext) -> bytes | None:  # noqa: ANN401
        call = None
        try:
            call = Call(context, gate)
            gate.calls.add(call)
            arguments = [call] if method.client_streaming else [parsed(request_type, request), call]
            response: Message | None = await function(*arguments)
        except asyncio.CancelledError:
            if call is None or call.ended_by is None:
                raise  # the client has gone
            failure = described(call.ended_by, call)
        except Exception as error:
            failure = described(error, call)
        else:
            return None if response is None else response.SerializeToString()
        finally:
            if call is not None:
                gate.calls.discard(call)
        # Outside the `except`, so that what is aborted does not drag the error along.
        gate.refused(failure, _extra(call) | {"rpc": method.name, "peer": context.peer()})
        await context.abort(failure.code, failure.text, failure.trailers())
        raise AssertionError("abort raises")

    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    return getattr(grpc, f"{kind}_rpc_method_handler")(serve)


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
