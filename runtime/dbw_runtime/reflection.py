"""gRPC's reflection service: tells tools such as `buf curl` which services there are, and what their messages are."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from grpc_reflection.v1alpha._async import ReflectionServicer
from grpc_reflection.v1alpha.reflection_pb2 import DESCRIPTOR, ServerReflectionRequest

from dbw_runtime.failure import limit_reached
from dbw_runtime.gate import CallLimits
from dbw_runtime.rpc import Call

REFLECTION: Any = DESCRIPTOR.services_by_name["ServerReflection"]
# Only people use it, a few at a time, and for seconds.
REFLECTION_LIMITS = CallLimits(calls=16, identity_calls=8, identity_rate=100.0, first_request_seconds=5.0)
STREAM_SECONDS = 60.0


class Reflection:
    """Answers questions about some services."""

    def __init__(self, services: Iterable[str]) -> None:
        self._servicer = ReflectionServicer(services)

    async def server_reflection_info(self, call: Call) -> None:
        """Answer a stream of questions."""
        try:
            async with asyncio.timeout(STREAM_SECONDS):
                answers: Any = self._servicer.ServerReflectionInfo(_requests(call), None)  # whose type hint is wrong
                async for answer in answers:
                    await call.write(answer)
        except TimeoutError:
            text = f"a stream of questions may take {STREAM_SECONDS:g} s; begin another"
            raise limit_reached("stream_seconds", text, retry_seconds=1.0) from None


async def _requests(call: Call) -> AsyncIterator[Any]:
    while (request := await call.read(ServerReflectionRequest)) is not None:
        yield request
