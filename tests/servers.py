"""Real servers and workers for tests: processes of their own on free ports."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar
from urllib.request import urlopen

import grpc

from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.parameter_server_pb2 import GetStatusRequest, GetStatusResponse
from dbw.v1.parameter_server_pb2_grpc import ParameterServerServiceStub
from tests.forks import Process

AnyProcess = TypeVar("AnyProcess", bound="LoggingProcess")

# Of a worker, for a server that trains `tests.models:tiny`.
TINY_WORK = ("--model", "tests.models:tiny", "--dataset", "tests.models:examples", "--batch-size", "16")
# How long anything may take before a test gives up; nothing is measured by it.
PATIENCE = 180.0


class LoggingProcess:
    """A program that logs, and all that it has logged. Flags may say another address for metrics than a free one."""

    module: str
    usual_flags: tuple[str, ...] = ("--metrics-listen", "127.0.0.1:0", "--log-format", "json")
    is_forked = True  # not where variables matter that are read while modules are imported
    metrics_port: int  # once it is known

    def __init__(self, *flags: str, **environment: str) -> None:
        source, sink = os.pipe()
        arguments = [*self.usual_flags, *flags]
        self.process: Process | subprocess.Popen[str]
        if self.is_forked:
            self.process = Process(self.module, arguments, environment, stderr=sink)
        else:
            command = [sys.executable, "-m", self.module, *arguments]
            self.process = subprocess.Popen(command, stderr=sink, text=True, env={**os.environ, **environment})
        os.close(sink)
        self.logs: list[dict[str, Any]] = []
        self.other_output: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, args=(source,), daemon=True)
        self._reader.start()

    def _read(self, source: int) -> None:
        with os.fdopen(source) as lines:
            for line in lines:
                with self._news:
                    try:
                        self.logs.append(json.loads(line))
                    except json.JSONDecodeError:
                        self.other_output.append(line)
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for_log(self, message: str, **fields: object) -> dict[str, Any]:
        """The first line whose message begins so, with these fields; waits for it."""

        def matching() -> list[dict[str, Any]]:
            lines = [line for line in self.logs if line["message"].startswith(message)]
            return [line for line in lines if fields.items() <= line.items()]

        with self._news:
            self._news.wait_for(lambda: matching() or self._ended, PATIENCE)
            found = matching()
            assert found, f"no line {message!r} in {self.logs} {self.other_output}"
            return found[0]

    def metrics(self) -> str:
        """What Prometheus would get."""
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=PATIENCE) as response:
            content: str = response.read().decode()
        return content

    def stop(self) -> int:
        """End it as an orchestrator would; returns its exit code."""
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        """End it as a power failure would."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait for its end; returns its exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code


class Server(LoggingProcess):
    """A server. Flags may say another address than a free one."""

    def __init__(self, *flags: str, **environment: str) -> None:
        super().__init__("--listen", "127.0.0.1:0", *flags, **environment)
        listening = self.wait_for_log("listening")
        self.port, self.metrics_port = listening["grpc_port"], listening["metrics_port"]

    @property
    def target(self) -> str:
        """Where it serves."""
        return f"127.0.0.1:{self.port}"


class Controller(Server):
    """A controller. Unless flags say something else, it decides as the paper does, which is easier to foresee."""

    module = "dbw_controller"

    def __init__(self, *flags: str, **environment: str) -> None:
        super().__init__(*flags, **{"DBW_CONTROLLER_DEFAULT_POLICY": "dbw"} | environment)

    @contextmanager
    def stub(self) -> Iterator[ControllerServiceStub]:
        """A connection to it."""
        with grpc.insecure_channel(self.target) as channel:
            yield ControllerServiceStub(channel)

    def unsaved_iterations(self, job: str) -> int:
        """What a crash would cost a job now."""
        return unsaved_iterations(self.metrics())[job]


class ParameterServer(Server):
    """A parameter server."""

    module = "dbw_ps"

    @contextmanager
    def stub(self) -> Iterator[ParameterServerServiceStub]:
        """A connection to it."""
        with grpc.insecure_channel(self.target) as channel:
            yield ParameterServerServiceStub(channel)

    def status(self) -> GetStatusResponse:
        """How its training goes."""
        with self.stub() as stub:
            return stub.GetStatus(GetStatusRequest(include_workers=True))


class Worker(LoggingProcess):
    """A worker."""

    module = "dbw_worker"

    def __init__(self, target: str, id_: str, *flags: str, **environment: str) -> None:
        super().__init__("--server", target, "--id", id_, "--log-level", "debug", *flags, **environment)
        self.id = id_

    @property
    def number(self) -> int:
        """The number that it has, once it has joined."""
        number: int = self.wait_for_log("joined")["worker"]
        return number

    def metrics(self) -> str:
        """What Prometheus would get, once it works."""
        self.metrics_port = self.wait_for_log("ready")["metrics_port"]
        return super().metrics()

    def outcomes(self) -> dict[str, float]:
        """How many of its gradients became what."""
        begin = 'dbw_worker_gradients_total{outcome="'
        lines = [line for line in self.metrics().splitlines() if line.startswith(begin)]
        return {line.removeprefix(begin).split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def unsaved_iterations(metrics: str) -> dict[str, int]:
    """What a crash would cost each job of a controller that has these metrics."""
    found = re.findall(r'^dbw_unsaved_iterations\{dbw_job="(.*)"\} (.*)$', metrics, re.MULTILINE)
    return {job: int(float(value)) for job, value in found}


def controller(*flags: str, **environment: str) -> "AbstractContextManager[Controller]":
    """A controller that is ready, and is gone afterwards."""
    return running(Controller(*flags, **environment))


def parameter_server(*flags: str, **environment: str) -> "AbstractContextManager[ParameterServer]":
    """A parameter server that is ready, and is gone afterwards."""
    return running(ParameterServer(*flags, **environment))


def worker(target: str, id_: str, *flags: str) -> "AbstractContextManager[Worker]":
    """A worker, whether it gets to work or not; it is gone afterwards. It computes with one thread."""
    return begun(Worker(target, id_, "--threads", "1", *flags))


@contextmanager
def running(process: AnyProcess) -> Iterator[AnyProcess]:
    """A process, once it is ready; it is gone afterwards."""
    with begun(process):
        process.wait_for_log("ready")
        yield process


@contextmanager
def begun(process: AnyProcess) -> Iterator[AnyProcess]:
    """A process, whether it gets ready or not; it is gone afterwards."""
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.kill()


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that other processes bring about."""
    tick, deadline = threading.Event(), PATIENCE
    while not condition():
        assert deadline > 0, "it did not happen"
        tick.wait(0.02)
        deadline -= 0.02
