"""Plays the steps of a recording to a real controller, over gRPC and with messages of the contract only.

A recording is a file of JSON lines. The first line says what it is about; each other line is a step, with all that the
controller answered: `rpc` names the call and `request` is its message as JSON (of streams `requests`, which are sent
one after the other on the same stream); `response`, `responses` and `error` are the answer. What cannot be the same
twice is replaced: sessions by `$1`, `$2` and so on, in the order in which they began; times of creation and update, and
format, size and digest of exported states, are left out. Beside rpcs, `do` can be `restart` (SIGTERM, and again from
the same folder) and `hang up` (end the open stream).
"""

import gzip
import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from tests.servers import PATIENCE, Controller, controller

DATA = Path(__file__).parent / "data"
SUFFIX = ".jsonl.gz"
# A job of a recording is older than any limit when it is played years later, and must stay.
FLAGS = ("--silent-days", "0")
NOT_REPRODUCIBLE = ("silent_seconds", "create_time", "update_time", "total_bytes", "sha256", "format_version")

Step = dict[str, Any]


def names(folder: Path) -> list[str]:
    """The recordings in a folder."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}"))


def read(folder: Path, name: str) -> tuple[Step, list[Step]]:
    """What a recording is about, and its steps."""
    with gzip.open(folder / f"{name}{SUFFIX}", "rt") as file:
        about, *steps = map(json.loads, file)
    return about, steps


def write(folder: Path, name: str, about: Step, steps: Iterable[Step]) -> None:
    """Write a recording; the same one always makes the same bytes."""
    lines = [json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in (about, *steps)]
    content = gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
    (folder / f"{name}{SUFFIX}").write_bytes(content)


class Stream:
    """An open stream of reports."""

    def __init__(self, stub: ControllerServiceStub) -> None:
        self._requests: SimpleQueue[pb.CoordinateRequest | None] = SimpleQueue()
        self._responses = stub.Coordinate(iter(self._requests.get, None), timeout=PATIENCE)

    def send(self, request: pb.CoordinateRequest) -> None:
        """Send a report."""
        self._requests.put(request)

    def receive(self) -> pb.CoordinateResponse:
        """The next answer."""
        return next(self._responses)

    def close(self) -> None:
        """End it. There is nothing more to come."""
        self._requests.put(None)

    def end(self) -> None:
        """End it, and wait for the controller's end of it."""
        self.close()
        assert list(self._responses) == []


class Player:
    """Plays one recording. Where it has a folder, it has a controller of its own, which can be restarted."""

    def __init__(
        self, server: Controller | None = None, folder: Path | None = None, states: Mapping[str, bytes] | None = None
    ) -> None:
        assert (server is None) != (folder is None)
        self._server, self._folder = server, folder
        self._states = dict(states or {})  # exported ones: whole responses, as clients keep them
        self._sessions: dict[str, str] = {}
        self._stream: Stream | None = None
        self._watched: Any = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        self._open = ExitStack()
        if self._folder is not None:
            self._server = self._open.enter_context(controller("--state-dir", str(self._folder), *FLAGS))
        assert self._server is not None
        self._stub = self._open.enter_context(self._server.stub())

    def _stop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._open.close()

    def play(self, step: Step) -> Step:
        """What is answered to a step."""
        if "do" in step:
            return self._do(step["do"])
        rpc = step["rpc"]
        special = {
            "Coordinate": self._coordinate,
            "ExportJobState": self._export_state,
            "ImportJobState": self._import_state,
            "WatchJob": self._watch,
        }
        try:
            answer = special[rpc](step) if rpc in special else {"response": self._call(rpc, step["request"])}
        except grpc.RpcError as error:
            answer = {"error": _described(error)}
        plain: Step = json.loads(json.dumps(answer))
        return plain

    def _do(self, what: str) -> Step:
        if what == "restart":
            assert self._server is not None
            assert self._folder is not None
            self._hang_up()
            assert self._server.stop() == 0
            self._stop()
            self._start()
        else:
            assert what == "hang up"
            self._hang_up()
        return {}

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.end()
            self._stream = None

    def _message(self, kind: str, content: Step) -> Any:
        """A request, with a session of now."""
        message = ParseDict(content, getattr(pb, f"{kind}Request")())
        if session := getattr(message, "session", ""):
            message.session = self._sessions.get(session, session)
        return message

    def _call(self, rpc: str, request: Step) -> Step:
        response = getattr(self._stub, rpc)(self._message(rpc, request), timeout=PATIENCE)
        if rpc == "CreateJob":
            name = f"${len(self._sessions) + 1}"
            self._sessions[name] = response.session
            response.session = name
        return _as_plain(response)

    def _coordinate(self, step: Step) -> Step:
        requests = [self._message("Coordinate", request) for request in step["requests"]]
        if self._stream is None:
            self._stream = Stream(self._stub)
        answer: Step = {"responses": []}
        for request in requests:
            self._stream.send(request)
        try:
            for request in requests:
                if request.HasField("summary") or request is requests[-1]:
                    answer["responses"].append(_as_plain(self._stream.receive()))
        except grpc.RpcError as error:
            self._stream.close()
            self._stream = None
            answer["error"] = _described(error)
        return answer

    def _export_state(self, step: Step) -> Step:
        pieces = list(self._stub.ExportJobState(self._message("ExportJobState", step["request"]), timeout=PATIENCE))
        whole = pb.ExportJobStateResponse(header=pieces[0].header, data=b"".join(piece.data for piece in pieces))
        self._states[step["keep"]] = whole.SerializeToString()
        return {"response": _as_plain(pb.ExportJobStateResponse(header=whole.header))}

    def _import_state(self, step: Step) -> Step:
        state = pb.ExportJobStateResponse.FromString(self._states[step["state"]])
        _damage(state, step.get("damage"))
        first = self._message("ImportJobState", step["request"])
        if step.get("damage") != "no header":
            first.header.CopyFrom(state.header)
        middle = len(state.data) // 2  # in two pieces
        first.data = state.data[:middle]
        requests = iter([first, pb.ImportJobStateRequest(data=state.data[middle:])])
        return {"response": _as_plain(self._stub.ImportJobState(requests, timeout=PATIENCE))}

    def _watch(self, step: Step) -> Step:
        """The next iteration of the job that is watched, or the first message of one."""
        if "request" in step:
            self._watched = self._stub.WatchJob(self._message("WatchJob", step["request"]), timeout=PATIENCE)
        response = next(self._watched, None)
        return {"response": None if response is None else _as_plain(response)}

    def state(self, name: str) -> bytes:
        """A state that was exported."""
        return self._states[name]


def _damage(state: pb.ExportJobStateResponse, how: str | None) -> None:
    """Change a state as a failing disk, or a newer controller, would."""
    if how == "cut":
        state.data = state.data[:-1]
    elif how == "flipped":
        state.data = state.data[:-1] + bytes([state.data[-1] ^ 1])
    elif how == "newer":
        state.header.format_version = 1000
    else:
        assert how in (None, "no header")


def _as_plain(message: Message) -> Step:
    content: Step = _without_times(MessageToDict(message, preserving_proto_field_name=True))
    return content


def _without_times(content: Any) -> Any:
    """The same without what cannot be reproduced."""
    if isinstance(content, dict):
        return {key: _without_times(value) for key, value in content.items() if key not in NOT_REPRODUCIBLE}
    return list(map(_without_times, content)) if isinstance(content, list) else content


def _described(error: grpc.RpcError) -> Step:
    """How an rpc failed: status, reason, and what the details name. The text is for readers of the recording."""
    assert isinstance(error, grpc.Call)
    described: Step = {"code": error.code().name}
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        kind = getattr(error_details_pb2, detail.TypeName().rpartition(".")[2])
        message = kind.FromString(detail.value)
        if isinstance(message, error_details_pb2.ErrorInfo):
            described |= {"domain": message.domain, "reason": message.reason, "metadata": dict(message.metadata)}
        elif isinstance(message, error_details_pb2.BadRequest):
            described["fields"] = [violation.field for violation in message.field_violations]
        elif isinstance(message, error_details_pb2.QuotaFailure):
            described["limits"] = [violation.subject for violation in message.violations]
        elif isinstance(message, error_details_pb2.RetryInfo):
            described["retry_seconds"] = message.retry_delay.ToNanoseconds() / 1e9
    return described | {"text": error.details()}
