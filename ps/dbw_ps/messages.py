"""Conversion between messages and what the parameter server works with."""

import torch

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps.members import Member, Members
from dbw_ps.model import Layout, TensorSpec
from dbw_ps.rounds import Verdict

OUTCOMES = {verdict: pb.GradientOutcome.Value(f"GRADIENT_OUTCOME_{verdict.name}") for verdict in Verdict}
TYPES: dict["pb.ElementType.ValueType", torch.dtype] = {
    pb.ELEMENT_TYPE_UNSPECIFIED: torch.float32,
    pb.ELEMENT_TYPE_FLOAT32: torch.float32,
    pb.ELEMENT_TYPE_FLOAT64: torch.float64,
    pb.ELEMENT_TYPE_FLOAT16: torch.float16,
    pb.ELEMENT_TYPE_BFLOAT16: torch.bfloat16,
}
EXTRA_LAYOUT_BYTES = 2**16  # by which that of a worker's model may exceed twice ours
TYPE_NUMBERS = {dtype: number for number, dtype in TYPES.items() if number}


def layout_message(layout: Layout) -> pb.ModelLayout:
    """How a model's tensors follow each other."""
    parameters, buffers = (
        [pb.Tensor(name=tensor.name, shape=tensor.shape) for tensor in tensors]
        for tensors in (layout.parameters, layout.buffers)
    )
    return pb.ModelLayout(parameters=parameters, buffers=buffers)


def layout_difference(expected: Layout, message: pb.ModelLayout) -> str | None:
    """What is wrong with the layout of a worker's model, in words; None if nothing.

    One that is far larger than ours is not looked at closely: that would take many times its size in memory.
    """
    ours, theirs = layout_message(expected).ByteSize(), message.ByteSize()
    if theirs > 2 * ours + EXTRA_LAYOUT_BYTES:
        tensors = len(message.parameters) + len(message.buffers)
        return f"its layout has {tensors} tensors in {theirs} bytes, ours takes {ours} bytes"
    return expected.difference(layout_from(message))


def layout_from(message: pb.ModelLayout) -> Layout:
    """How a model's tensors follow each other."""
    parameters, buffers = (
        tuple(TensorSpec(tensor.name, tuple(tensor.shape)) for tensor in tensors)
        for tensors in (message.parameters, message.buffers)
    )
    return Layout(parameters, buffers)


def worker_message(member: Member, members: Members, now: float) -> pb.WorkerStatus:
    """A worker as the parameter server sees it."""
    return pb.WorkerStatus(
        worker=member.number,
        worker_id=member.id,
        live=member.number in members.live,
        version=member.version,
        silent_seconds=max(now - member.heard, 0.0),
        used_gradients=member.used,
        late_gradients=member.late,
        lost_gradients=member.lost,
        computing_seconds=member.pace.seconds(now),
        stalled=member.number in members.stalled,
    )
