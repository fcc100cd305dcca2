"""The standard health service: whether a server is ready.

gRPC's own one writes to those who watch while it holds a lock: one who does not read keeps it from ever changing, and
so the server from stopping.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from dbw_runtime.failure import StatusError, limit_reached
from dbw_runtime.gate import CallLimits
from dbw_runtime.rpc import Call

UNKNOWN = "unknown"  # no service has this name
HEALTH: Any = health_pb2.DESCRIPTOR.services_by_name["Health"]
# These calls need no token. None of them takes the place of a client's call, and none can keep the next one out. gRPC
# takes as large a message for them as for others: a few such are what anybody who can connect may have it keep.
MAX_WATCHERS = 8
HEALTH_LIMITS = CallLimits(calls=2 * MAX_WATCHERS, first_request_seconds=5.0, newest_first=True)


class Health:
    """The same status for all of some services; the name of the whole server is empty."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = {"", *services}
        self._serving = False
        self._watchers = 0
        self._changed = asyncio.Event()

    def set_serving(self, serving: bool) -> None:
        """Change the status, and tell those who watch."""
        if serving != self._serving:
            self._serving = serving
            self._changed.set()
            self._changed = asyncio.Event()

    async def check(self, request: HealthCheckRequest, call: Call) -> HealthCheckResponse:  # noqa: ARG002
        """The status as it is."""
        if request.service not in self._services:
            raise StatusError(StatusCode.NOT_FOUND, "SERVICE_NOT_FOUND", f"there is no service {request.service!r}")
        return self._response(request.service)

    async def list(self, request: Any, call: Call) -> Any:  # noqa: ANN401, ARG002 (the type hints do not have it yet)
        """The status of all services."""
        response: Any = GetMessageClass(HEALTH.methods_by_name["List"].output_type)
        return response(statuses={name: self._response(name) for name in self._services})

    async def watch(self, request: HealthCheckRequest, call: Call) -> None:
        """The status as it is, and then whenever it changes."""
        if self._watchers >= MAX_WATCHERS:
            raise limit_reached("watchers", f"{MAX_WATCHERS} watch already; use Check", retry_seconds=1.0)
        self._watchers += 1
        service = request.service if request.service in self._services else UNKNOWN
        del request  # it may be large
        try:
            while True:
                changed = self._changed
                await call.write(self._response(service))
                await changed.wait()
        finally:
            self._watchers -= 1

    def _response(self, service: str) -> HealthCheckResponse:
        if service not in self._services:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        serving, not_serving = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse(status=serving if self._serving else not_serving)
