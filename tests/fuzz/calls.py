"""Calls that a broken or hostile client could make, and whether they are answered as the contract says."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2

from tests.contract import PROTOS
from tests.fuzz.messages import Messages
from tests.servers import PATIENCE

# A call that waits for something is given up after one of these times, in seconds.
WAITS = (0.0, 0.01, 0.1, 0.5)
# What gRPC itself answers, without a reason of ours.
OVERSIZED_BYTES, UNKNOWN_METHOD = 4 * 2**20, "NoSuchMethod"
REASON = re.compile(r"  // ([A-Z_]+): (?:.*\n  //)*.*\n  ERROR_REASON_(\w+) = ")


def documented() -> frozenset[tuple[str, str]]:
    """The statuses of error.proto, with their reasons; not that of a bug."""
    found = REASON.findall((PROTOS / "dbw" / "v1" / "error.proto").read_text())
    assert ("NOT_FOUND", "JOB_NOT_FOUND") in found
    return frozenset(found) - {("INTERNAL", "BUG")}


DOCUMENTED = documented()


@dataclass
class Known:
    """Values that get a call somewhere, and how requests look that make sense."""

    values: dict[str, list[Any]]
    examples: Callable[[type[Message], Random], Message | None]  # of a type of requests
    learn: Callable[[Message], object]  # from a response


@dataclass
class Attempt:
    """One call: what is sent, and how it ends."""

    method: MethodDescriptor
    requests: list[bytes] = field(default_factory=list)
    is_half_closed: bool = True
    wait: float | None = None  # after which it is cancelled, or its deadline has passed; None: it must be answered
    is_cancelled: bool = False
    path: str = ""

    def __str__(self) -> str:
        end = "half-closed" if self.is_half_closed else "left open"
        requests = ", ".join(data[:200].hex() for data in self.requests)
        return f"{self.path} {end}, given up after {self.wait} s, requests {requests}"


def attempt(service: ServiceDescriptor, random: Random, known: Known) -> Attempt:
    """Any call of a service."""
    method = random.choice(service.methods)
    made = Attempt(method, path=f"/{service.full_name}/{method.name}")
    generator = Messages(random, known.values)
    kind = GetMessageClass(method.input_type)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6)) if method.client_streaming else random.choice((1,) * 9 + (0, 2))):
        message = known.examples(kind, random) if random.random() < 0.7 else None
        if message is None:
            message = generator.message(kind)
        else:
            for _ in range(random.choice((0, 0, 1, 1, 2, 4))):
                generator.change(message)
        made.requests.append(generator.encoded(message))
    made.is_half_closed = random.random() < 0.8
    if method.server_streaming or method.client_streaming or not made.requests or random.random() < 0.1:
        made.wait = random.choice(WAITS)
        made.is_cancelled = random.random() < 0.5
    if random.random() < 0.01:
        made.path += UNKNOWN_METHOD
    return made


def problem_with(made: Attempt, channel: grpc.Channel, known: Known) -> str | None:
    """Make a call; returns what was wrong with how it was answered."""
    answered, kind, count = threading.Event(), GetMessageClass(made.method.output_type), 0

    def requests() -> Iterator[bytes]:
        yield from made.requests
        if not made.is_half_closed:
            answered.wait(PATIENCE)

    timeout = PATIENCE if made.wait is None or made.is_cancelled else max(made.wait, 0.001)
    rpc: Any = channel.stream_stream(made.path, None, None)
    call = rpc(requests(), timeout=timeout)
    timer = threading.Timer(PATIENCE if made.wait is None else made.wait, call.cancel)
    if made.is_cancelled:
        timer.start()
    try:
        for data in call:
            known.learn(kind.FromString(data))
            count += 1
    except DecodeError as error:
        return f"the response is not a {kind.DESCRIPTOR.name}: {error}"
    except grpc.RpcError:
        given_up = grpc.StatusCode.CANCELLED if made.is_cancelled else grpc.StatusCode.DEADLINE_EXCEEDED
        if made.wait is not None and call.code() is given_up:
            return None
        return problem_with_status(made, call.code(), call.trailing_metadata() or (), call.details() or "")
    finally:
        answered.set()
        timer.cancel()
    return None if made.method.server_streaming or count == 1 else f"{count} responses"


def problem_with_status(
    made: Attempt, code: grpc.StatusCode, trailers: Sequence[tuple[str, Any]], text: str
) -> str | None:
    """What is not documented about a status."""
    if code is grpc.StatusCode.UNIMPLEMENTED and made.path.endswith(UNKNOWN_METHOD):
        return None
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and any(len(data) > OVERSIZED_BYTES for data in made.requests):
        return None
    info = error_details_pb2.ErrorInfo()
    for key, value in trailers:
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            if status.details and status.details[0].Unpack(info) and (code.name, info.reason) in DOCUMENTED:
                return None
    return f"{code.name} {info.reason or 'without a reason'}: {text}"
