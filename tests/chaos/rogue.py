"""Workers that do not behave: they join, and then stall, dribble, or send what is no gradient."""

import random
import time
from contextlib import suppress

import grpc
import torch
from torch import Tensor

from dbw_ps import pieces
from dbw_ps.messages import layout_from
from dbw_ps.tensors import bytes_of
from tests.workers import Rogue

PAUSE_SECONDS = 0.2
CALL_SECONDS = 10.0
KNOWN_ITERATIONS = 50  # after which the norms of good gradients are known, also to a server that was restarted
MANNERS = ("stalls in an upload", "dribbles", "sends garbage")


def misbehave(target: str, id_: str, manner: str, seconds: float, rng: random.Random) -> None:
    """Be a worker of this server for some time, as far as it can be reached."""
    until = time.monotonic() + seconds
    with suppress(grpc.RpcError), Rogue(target, id_) as rogue:
        vector = torch.zeros(layout_from(rogue.joined.layout).elements)
        while (left := until - time.monotonic()) > 0:
            with suppress(grpc.RpcError, grpc.FutureTimeoutError):
                if manner == "sends garbage":
                    _send_garbage(rogue, vector, rng)
                    time.sleep(min(PAUSE_SECONDS, left))
                else:
                    _hold_up(rogue, vector, until, dribbles=manner == "dribbles")
            with suppress(grpc.RpcError):
                rogue.rejoin()


def _hold_up(rogue: Rogue, vector: Tensor, until: float, *, dribbles: bool) -> None:
    """Begin to push, and then send nothing, or pieces of nothing, for as long as the server lets us."""
    push = rogue.begin_push()
    try:
        push.send(rogue.half(rogue.version, vector))
        while time.monotonic() < until and not push.call.done():
            time.sleep(PAUSE_SECONDS)
            if dribbles:
                push.send(pieces.encode(None, 0, memoryview(b"")))
    finally:
        push.cancel()


def _send_garbage(rogue: Rogue, vector: Tensor, rng: random.Random) -> None:
    version = rogue.version
    good = bytes_of(vector)
    kinds = [
        [rng.randbytes(100)],
        pieces.cut(rogue.header(version, vector), bytes_of(vector * float("nan"))),
        pieces.cut(rogue.header(version + 10**6, vector), good),
        pieces.cut(rogue.header(version, vector, total_bytes=17), good),
        pieces.cut(rogue.header(version, vector, loss=float("inf")), good),
    ]
    if version > KNOWN_ITERATIONS:
        kinds.append(pieces.cut(rogue.header(version, vector), bytes_of(vector + 1e20)))
    push = rogue.begin_push()
    try:
        for message in rng.choice(kinds):
            push.send(message)
        push.end(CALL_SECONDS)
    finally:
        push.cancel()
