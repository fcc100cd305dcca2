"""A client of gRPC that does what no library lets it do, over bare HTTP/2."""

import socket
import struct
from collections.abc import Callable
from typing import Any, Self

import h2.config
import h2.connection
import h2.events
import h2.settings

from tests.servers import PATIENCE

CONTROLLER = "/dbw.v1.ControllerService/"
PARAMETER_SERVER = "/dbw.v1.ParameterServerService/"
CHECK = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
RECEIVE_BYTES = 65_536


def framed(message: bytes, announced: int | None = None, compressed: bool = False) -> bytes:
    """A message as gRPC sends it. It may announce another length than it has."""
    return struct.pack(">?I", compressed, len(message) if announced is None else announced) + message


class RawClient:
    """One connection. `statuses` has the status of every call that the server has ended, None for a reset."""

    def __init__(self, port: int, token: str | None = None, window: int | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        configuration = h2.config.H2Configuration(client_side=True, validate_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(configuration)
        self.h2.initiate_connection()
        if window is not None:
            self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.statuses: dict[int, int | None] = {}
        self.is_closed = False
        self._token = token
        self.flush()

    def begin(self, path: str, *metadata: tuple[str, str], end: bool = False) -> int:
        """Send the headers of a call; returns its number."""
        call = self.h2.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        headers += [("te", "trailers"), ("content-type", "application/grpc"), *metadata]
        if self._token is not None:
            headers.append(("authorization", f"Bearer {self._token}"))
        self.h2.send_headers(call, headers, end_stream=end)
        return call

    def send(self, call: int, data: bytes, end: bool = False) -> int:
        """Send as much of some data as the server takes now; returns how many bytes that were."""
        sent = 0
        while sent < len(data) and not self.is_over(call):
            room = min(self.h2.local_flow_control_window(call), self.h2.max_outbound_frame_size, len(data) - sent)
            if room <= 0:
                break
            self.h2.send_data(call, data[sent : sent + room])
            sent += room
        if end and sent == len(data) and not self.is_over(call):
            self.h2.end_stream(call)
        self.flush()
        return sent

    def ask(self, path: str, message: bytes = b"", *metadata: tuple[str, str], end: bool = True) -> int:
        """Make a call with one request; returns its number."""
        call = self.begin(path, *metadata)
        self.send(call, framed(message), end)
        return call

    def is_over(self, call: int) -> bool:
        """Whether the server has ended a call, as far as it was received."""
        return call in self.statuses or self.is_closed

    def flush(self) -> None:
        """Send what is due."""
        try:
            self.socket.sendall(self.h2.data_to_send())
        except OSError:
            self.is_closed = True

    def receive(self, seconds: float = PATIENCE) -> bool:
        """Take in what comes next; returns whether anything came in time."""
        self.flush()
        self.socket.settimeout(seconds)
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        if not data:
            self.is_closed = True
            return False
        for event in self.h2.receive_data(data):
            self._happened(event)
        self.flush()
        return True

    def _happened(self, event: Any) -> None:
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                headers = {name.decode(): value.decode() for name, value in event.headers}
                if "grpc-status" in headers:
                    self.statuses[event.stream_id] = int(headers["grpc-status"])
            case h2.events.StreamReset():
                self.statuses.setdefault(event.stream_id, None)
            case h2.events.ConnectionTerminated():
                self.is_closed = True

    def receive_until(self, condition: Callable[[], object]) -> None:
        """Take in what comes until something is so, or the server hangs up."""
        while not (condition() or self.is_closed):
            assert self.receive() or self.is_closed, "nothing comes any more"

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
