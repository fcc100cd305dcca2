"""The standard health service: whether a server is ready.

gRPC's own one writes to those who watch while it holds a lock: one who does not read keeps it from ever changing, and
so the server from stopping.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

# They need no token, and must not take the place of those who have one.
MOST_WATCHERS = 50


class Health(HealthServicer):
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

    async def Check(self, request: HealthCheckRequest, context: Any) -> HealthCheckResponse:  # noqa: ANN401, N802
        """The status as it is."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r}")
        return self._response(request)

    async def Watch(self, request: HealthCheckRequest, context: Any) -> None:  # noqa: ANN401, N802
        """The status as it is, and then whenever it changes."""
        if self._watchers >= MOST_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MOST_WATCHERS} watch already; use Check")
        self._watchers += 1
        try:
            while True:
                changed = self._changed
                await context.write(self._response(request))
                await changed.wait()
        finally:
            self._watchers -= 1

    def _response(self, request: HealthCheckRequest) -> HealthCheckResponse:
        if request.service not in self._services:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        serving, not_serving = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse(status=serving if self._serving else not_serving)
