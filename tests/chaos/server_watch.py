"""Watches servers: whether they answer their probes, how much memory they take, what the controller has learnt."""

import asyncio
import time
from contextlib import suppress
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from dbw.v1.controller_pb2 import ListJobsRequest
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from tests.chaos.cluster import Cluster, Host
from tests.chaos.history import History
from tests.chaos.process import Supervised
from tests.servers import unsaved_iterations

POLL_SECONDS = 0.5
PROBE_SECONDS = 15.0  # in which a probe must be answered, on a machine that is busy with faults
DISK_SECONDS = 15.0  # after a fault of its disk the controller may not yet have saved everything
MEMORY_SECONDS = 5.0
MORE_MEMORY = 150.0  # MB


async def watch_health(host: Host, history: History) -> None:
    """Probe a server as `dbw health` does, again and again, and its metrics as Prometheus does."""
    process = host.process
    async with grpc.aio.insecure_channel(host.target) as channel:
        stub: Any = HealthStub(channel)
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if not process.is_ready or process.is_paused:
                continue
            starts, changed_at, began = process.starts, process.changed_at, time.monotonic()
            problem = None
            try:
                await stub.Check(HealthCheckRequest(), timeout=PROBE_SECONDS)
            except grpc.RpcError as error:
                problem = f"its health: {error.code().name}"
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await _get_metrics(host.metrics_port)
            except (OSError, TimeoutError) as error:
                problem = f"its metrics: {error!r}"
            slow = time.monotonic() - began >= PROBE_SECONDS  # rather than that it is about to end
            is_same = process.is_ready and (process.starts, process.changed_at) == (starts, changed_at)
            if problem and slow and is_same and not process.is_stopping:
                history.violated(f"{host.name} does not answer a probe of {problem}")


async def _get_metrics(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        status = await reader.readline()
        if b" 200 " not in status:
            raise OSError(f"its status is {status!r}")
        return (await reader.read()).decode()
    finally:
        writer.close()


class ControllerWatch:
    """What each job has learnt must never become less, but for what was not saved when the controller crashed."""

    def __init__(self, host: Host, history: History) -> None:
        self._host, self._history = host, history
        self._learnt: dict[str, int] = {}
        self._earlier: dict[str, int] = {}  # a poll before: what was learnt then has been counted as unsaved, or saved
        self._unsaved: dict[str, int] = {}
        self._starts = 0
        self.is_ending = False  # trainings end, and take their jobs with them

    async def run(self) -> None:
        """Ask for all jobs, again and again."""
        process = self._host.process
        async with grpc.aio.insecure_channel(self._host.target) as channel:
            stub: Any = ControllerServiceStub(channel)
            while True:
                await asyncio.sleep(POLL_SECONDS)
                starts = process.starts
                with suppress(grpc.RpcError, OSError, TimeoutError):
                    response = await stub.ListJobs(ListJobsRequest(), timeout=5.0)
                    async with asyncio.timeout(PROBE_SECONDS):
                        metrics = await _get_metrics(self._host.metrics_port)
                    if starts == process.starts and process.is_ready:
                        learnt = {job.name: job.learnt_iterations for job in response.jobs}
                        self._seen(starts, learnt, unsaved_iterations(metrics))

    def _seen(self, starts: int, learnt: dict[str, int], unsaved: dict[str, int]) -> None:
        if self.is_ending:
            return
        was_restarted = starts != self._starts
        for name, before in self._learnt.items():
            now = learnt.get(name, 0)
            lost = before - now
            if lost > 0 and not was_restarted:
                self._history.violated(f"the controller's job {name} fell from {before} learnt iterations to {now}")
            elif lost > 0:
                self._history.counts[f"iterations that the controller's job {name} has lost"] += lost
                self._history.note(f"the controller has lost {lost} learnt iterations of {name}")
                is_disturbed = self._host.disk.hurt_until >= time.monotonic() - DISK_SECONDS
                if self._earlier.get(name, 0) - now > self._unsaved.get(name, 0) and not is_disturbed:
                    self._history.violated(f"the controller lost {lost} learnt iterations of {name} in a crash")
        self._earlier = {} if was_restarted else self._learnt
        self._starts, self._learnt, self._unsaved = starts, learnt, unsaved


async def watch_memory(cluster: Cluster, history: History) -> None:
    """No process takes more and more memory."""
    first: dict[tuple[Supervised, int], float] = {}
    told: set[tuple[Supervised, int]] = set()
    while True:
        await asyncio.sleep(MEMORY_SECONDS)
        for process in cluster.processes():
            key, memory = (process, process.starts), process.memory()
            if memory is None or not process.is_ready or time.monotonic() - process.changed_at < MEMORY_SECONDS:
                continue
            if memory - first.setdefault(key, memory) > MORE_MEMORY and key not in told:
                told.add(key)
                history.violated(f"{process.name} had {first[key]:.0f} MB to itself, and now {memory:.0f} MB")
