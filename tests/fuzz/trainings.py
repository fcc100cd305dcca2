"""What a parameter server reads from its disk, what workers send to it, and what it sends to them."""

import hashlib
import io
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from google.protobuf.message import DecodeError, Message

from dbw.v1 import parameter_server_pb2 as pb
from dbw_controller.client.settings import split_state
from dbw_ps import pieces
from dbw_ps.checkpoint import DIGEST_BYTES, CheckpointFolder
from dbw_ps.client import Incoming, on_the_wire
from dbw_ps.gradient import IncomingGradient, RejectedError
from dbw_ps.intake import piece_from
from dbw_ps.members import Members
from dbw_ps.messages import layout_message
from dbw_ps.model import FlatModel
from dbw_ps.optimiser import Optimiser
from dbw_ps.outliers import Outliers
from dbw_ps.progress import TrainingState
from dbw_ps.tensors import bytes_of
from dbw_ps.training_log import TrainingLog, encode, has_entries, read
from dbw_runtime.configuration import UsageError
from dbw_runtime.durable import FolderError
from dbw_runtime.failure import StatusError
from dbw_runtime.rpc import parsed
from tests import models
from tests.fuzz.changes import changed_tree
from tests.fuzz.messages import Messages
from tests.fuzz.target import Mutate, Target

RECORDED = Path(__file__).parent.parent / "recordings" / "data" / "checkpoint" / "checkpoint-000000000030.pt"
OPTIMIZER = "sgd:lr=0.1,momentum=0.9"
ITERATION = 7


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="dbw-fuzz-"))


def _begun(checkpoint: dict[str, Any]) -> TrainingState:
    model = FlatModel(models.normalised())
    return TrainingState.begin(model, Optimiser(model, OPTIMIZER, "steplr:step_size=3"), checkpoint)


def run_checkpoint(data: bytes) -> None:
    """Go on from a checkpoint, as a parameter server does that starts."""
    path = _folder() / f"checkpoint-{ITERATION:012}.pt"
    for other in _folder().iterdir():
        other.unlink()
    path.write_bytes(data)
    with closing(CheckpointFolder(_folder())) as folder:
        try:
            found = folder.newest()
        except FolderError:
            return
    if found is None:
        return
    try:
        state = _begun(found[1])
    except ValueError:  # it does not fit
        return
    members = Members(lambda: "session", 10.0, found[1].get("workers"), found[1].get("worker_identities"))
    outliers = Outliers(10.0, state.progress.usual_norms)
    outliers.problem(0, 1.0)
    member, _ = members.join("somebody", 0.0)
    state.progress.ended({member.number: 1.0}, 1.0, outliers.state)
    state.progress.model_is_behind = False
    captured = state.capture(members.numbers, {"somebody": "alice"})
    if captured is not None:
        _saved(captured)


def _saved(content: object) -> bytes:
    """What a checkpoint's file has."""
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def _with_digest(archive: bytes) -> bytes:
    content = archive[:-2] + struct.pack("<H", DIGEST_BYTES)
    return content + hashlib.sha256(content).hexdigest().encode()


def checkpoint_seeds() -> Iterator[bytes]:
    """Checkpoints of a small training, and one of an earlier version, of a model that is not expected."""
    for workers in ({}, {"a": 0, "b": 1}):
        state = _begun({})
        state.optimiser.step(0.0)
        state.progress.ended({0: 1.0, 1: 2.0}, 3.0, Outliers(10.0).state)
        state.progress.model_is_behind = False
        yield _with_digest(_saved({"format_version": 1, **(state.capture(workers, {}) or {}), "job_state": None}))
    yield RECORDED.read_bytes()


def mutate_checkpoint(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change what a checkpoint holds, or its archive behind the digest."""
    archive = data[: -2 - DIGEST_BYTES] + b"\0\0"
    if random.random() < 0.2:
        return _with_digest(mutate(archive)) if random.random() < 0.9 else mutate(data)
    try:
        content = torch.load(io.BytesIO(archive), weights_only=True)
        return _with_digest(_saved(changed_tree(random, _plain(content), mutate)))
    except Exception:  # whatever is no archive any more
        return next(checkpoint_seeds())


def _plain(content: Any) -> Any:
    """Dictionaries and lists, in which anything can be changed."""
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    return [_plain(value) for value in content] if isinstance(content, list) else content


def run_log(data: bytes) -> None:
    """Go on with a training log, and read it."""
    for other in _folder().iterdir():
        other.unlink()
    path = _folder() / "log"
    path.write_bytes(data)
    with suppress(UsageError):
        has_entries(path)
    with suppress(UsageError):
        list(read(path))
    try:
        log = TrainingLog(path, ITERATION)
    except UsageError:
        assert path.read_bytes() == data, "what was refused was changed"
        return
    with closing(log):
        assert log.write(encode({"iteration": ITERATION}))
    entries = [entry["iteration"] for entry in read(path)]  # whoever has opened it can read it
    assert entries[-1] == ITERATION
    assert all(iteration < ITERATION for iteration in entries[:-1])


def log_seeds() -> Iterator[bytes]:
    """Logs with all that real ones may have."""
    lines = [encode({"iteration": i, "loss": 1.5 / (i + 1), "workers": [0, 1], "k": 2}) for i in range(10)]
    yield b"".join(lines)
    yield b"".join(lines[:5]) + lines[5][:-9]
    yield lines[0] + b"\0" * 20 + b"".join(lines[8:])
    yield b'{"iteration": 1e400}\n{"iteration": [[[]]]}\n'


LAYOUTS = [FlatModel(model()).layout for model in (models.tiny, models.normalised)]


def _parts(data: bytes) -> list[bytes]:
    """Messages one after the other, each with its length in two bytes before it."""
    parts = []
    while data:
        size = int.from_bytes(data[:2], "little")
        parts.append(data[2 : 2 + size])
        data = data[2 + size :]
    return parts


def _joined(parts: list[bytes]) -> bytes:
    return b"".join(len(part[:65535]).to_bytes(2, "little") + part[:65535] for part in parts)


def run_gradient(data: bytes) -> None:
    """Receive a gradient; the first byte says of which model."""
    if not data:
        return
    layout, gradient = LAYOUTS[data[0] % len(LAYOUTS)], None
    for message in _parts(data[1:]):
        try:
            _require_same(message)
            piece = piece_from(message)
            assert piece is not None
            if gradient is None:
                gradient = IncomingGradient(parsed(pb.GradientHeader, bytes(piece.header or b"")), layout)
            gradient.take(piece)
        except (RejectedError, StatusError):
            return
        if gradient.is_complete:
            whole = gradient.whole
            assert whole.squared_norm >= 0.0
            return


def _require_same(message: bytes) -> None:
    """What protobuf can read, we read in the same way, unless we refuse it."""
    try:
        whole = pb.PushGradientRequest.FromString(message)
    except DecodeError:
        return
    try:
        piece = pieces.decode(message)
    except pieces.PieceError:
        return  # groups, for example, and more fields than anybody sends
    assert (piece.offset, bytes(piece.data)) == (whole.offset, whole.data)
    assert (piece.header is not None) == whole.HasField("header")


def gradient_seeds() -> Iterator[bytes]:
    """Gradients in one piece and in several."""
    for number, layout in enumerate(LAYOUTS):
        vector = bytes_of(torch.linspace(-1, 1, layout.elements))
        header = pb.GradientHeader(session="s-1", version=3, total_bytes=len(vector), loss=0.5, part_squared_norms=[1])
        encoded = header.SerializeToString()
        yield bytes([number]) + _joined([pieces.encode(encoded, 0, vector)])
        half = len(vector) // 8 * 4
        parts = [(encoded, 0, vector[:0]), (None, 0, vector[:half]), (None, half, vector[half:])]
        yield bytes([number]) + _joined([pieces.encode(*part) for part in parts])


def _mutate_pieces(
    data: bytes, random: Random, mutate: Mutate, kind: type[Message], known: dict[str, Any]
) -> list[bytes]:
    """Change the pieces of a vector: their fields, bytes or order."""
    parts, generator = _parts(data), Messages(random, known)
    if not parts:
        return [generator.encoded(generator.message(kind))]
    at = random.randrange(len(parts))
    match random.randrange(8):
        case 0:
            del parts[at]
        case 1:
            parts.insert(at, random.choice(parts))
        case 2:
            random.shuffle(parts)
        case 3:
            parts[at] = mutate(parts[at])
        case _:
            try:
                parts[at] = generator.encoded(generator.change(kind.FromString(parts[at])))
            except DecodeError:
                parts[at] = generator.encoded(generator.message(kind))
    return parts


def mutate_gradient(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change a gradient."""
    known = {"total_bytes": [4 * layout.elements for layout in LAYOUTS], "offset": range(0, 400, 4), "version": [3]}
    parts = _mutate_pieces(data[1:], random, mutate, pb.PushGradientRequest, known)
    return (data[:1] or b"\0") + _joined(parts)


def run_parameters(data: bytes) -> None:
    """Receive parameters as a worker does: the answer to Join first, and then pieces."""
    if not (parts := _parts(data)):
        return
    try:
        session = pb.JoinResponse.FromString(parts[0])
    except DecodeError:
        return
    incoming = Incoming()
    for message in parts[1:]:
        try:
            parameters = incoming.take(message, session)
        except (OSError, ValueError):  # whereupon the worker joins again
            return
        if parameters is not None:
            assert parameters.vector.dtype == torch.float32
            with suppress(ValueError):
                on_the_wire(parameters.vector, session)


def parameter_seeds() -> Iterator[bytes]:
    """What a server sends."""
    for layout in LAYOUTS:
        vector = bytes_of(torch.linspace(-1, 1, layout.elements))
        for kind in (pb.ELEMENT_TYPE_FLOAT32, pb.ELEMENT_TYPE_FLOAT16):
            session = pb.JoinResponse(session="s-1", layout=layout_message(layout), gradient_type=kind)
            header = pb.ParametersHeader(version=3, type=pb.ELEMENT_TYPE_FLOAT32, total_bytes=len(vector))
            encoded, half = header.SerializeToString(), len(vector) // 8 * 4
            cut = [(encoded, 0, vector[:0]), (None, 0, vector[:half]), (None, half, vector[half:])]
            for parts in ([(encoded, 0, vector)], cut):
                yield _joined([session.SerializeToString(), *(pieces.encode(*part) for part in parts)])


def mutate_parameters(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change what a server sends."""
    first, *rest = _parts(data) or [b""]
    known = {"total_bytes": [4 * layout.elements for layout in LAYOUTS], "offset": range(0, 400, 4)}
    if random.random() < 0.3:
        generator = Messages(random)
        with suppress(DecodeError):
            first = generator.encoded(generator.change(pb.JoinResponse.FromString(first)))
        return _joined([first, *rest])
    return _joined([first, *_mutate_pieces(_joined(rest), random, mutate, pb.SubscribeResponse, known)])


def run_exported(data: bytes) -> None:
    """Give a controller the state that a checkpoint has."""
    with suppress(OSError):
        list(split_state(data, "resnet", "session"))


def exported_seeds() -> Iterator[bytes]:
    """A state as checkpoints have it."""
    yield torch.load(RECORDED, weights_only=True)["job_state"]


TARGETS = {
    "checkpoints": Target(run_checkpoint, checkpoint_seeds, mutate_checkpoint, short_runs=150, max_bytes=64 * 2**10),
    "training logs": Target(run_log, log_seeds, short_runs=1000),
    "gradients": Target(run_gradient, gradient_seeds, mutate_gradient),
    "parameters": Target(run_parameters, parameter_seeds, mutate_parameters),
    "exported states": Target(run_exported, exported_seeds),
}
