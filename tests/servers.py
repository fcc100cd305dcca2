"""Real servers for tests: processes of their own on free ports."""

import json
import os
import signal
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

AnyServer = TypeVar("AnyServer", bound="Server")

# How long anything may take before a test gives up; nothing is measured by it.
PATIENCE = 60.0


class Server:
    """A server process, and all that it has logged. Flags may say another address than a free one."""

    module: str

    def __init__(self, *flags: str, **environment: str) -> None:
        addresses = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--log-format", "json"]
        self.process = self._start([*addresses, *flags], environment)
        self.logs: list[dict[str, Any]] = []
        self.other_output: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        listening = self.wait_for_log("listening")
        self.port, self.metrics_port = listening["grpc_port"], listening["metrics_port"]

    def _start(self, arguments: list[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", self.module, *arguments]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})

    @property
    def target(self) -> str:
        """Where it serves."""
        return f"127.0.0.1:{self.port}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
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
        self.process.send_signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Wait for its end; returns its exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code


class Controller(Server):
    """A controller."""

    module = "dbw_controller"

    @contextmanager
    def stub(self) -> Iterator[ControllerServiceStub]:
        """A connection to it."""
        with grpc.insecure_channel(self.target) as channel:
            yield ControllerServiceStub(channel)


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


def controller(*flags: str, **environment: str) -> "AbstractContextManager[Controller]":
    """A controller that is ready, and is gone afterwards."""
    return running(Controller(*flags, **environment))


def parameter_server(*flags: str, **environment: str) -> "AbstractContextManager[ParameterServer]":
    """A parameter server that is ready, and is gone afterwards."""
    return running(ParameterServer(*flags, **environment))


@contextmanager
def running(server: AnyServer) -> Iterator[AnyServer]:
    """A server, once it is ready; it is gone afterwards."""
    try:
        server.wait_for_log("ready")
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
        assert server.process.stderr is not None
        server.process.stderr.close()


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that other processes bring about."""
    tick, deadline = threading.Event(), PATIENCE
    while not condition():
        assert deadline > 0, "it did not happen"
        tick.wait(0.02)
        deadline -= 0.02
