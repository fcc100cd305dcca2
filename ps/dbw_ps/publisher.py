"""The newest parameters, and everybody who waits for them."""

import asyncio
from dataclasses import dataclass

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import pieces
from dbw_ps.model import FlatModel
from dbw_ps.tensors import bytes_of


@dataclass(eq=False)
class Publication:
    """Parameters of one version, serialised once for all workers."""

    version: int
    finished: bool  # whether the training is over
    pieces: list[bytes]  # empty as soon as there are newer ones, so that a worker that is stuck keeps no memory

    def farewell(self) -> bytes:
        """What a worker gets that has these parameters already."""
        header = pb.ParametersHeader(version=self.version, type=pb.ELEMENT_TYPE_FLOAT32, finished=self.finished)
        return pieces.encode(header.SerializeToString(), 0, memoryview(b""))


def serialise(model: FlatModel, version: int, finished: bool) -> Publication:
    """The parameters of a model as they are now."""
    vector = bytes_of(model.vector)
    header = pb.ParametersHeader(
        version=version, type=pb.ELEMENT_TYPE_FLOAT32, total_bytes=vector.nbytes, finished=finished
    )
    return Publication(version, finished, list(pieces.cut(header, vector)))


class Publisher:
    """Holds the newest parameters."""

    def __init__(self) -> None:
        self.current: Publication | None = None
        self._changed = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """Whether training is over."""
        return self.current is not None and self.current.finished

    def publish(self, publication: Publication) -> None:
        """Replace the parameters by newer ones."""
        if self.current is not None:
            self.current.pieces.clear()
        self.current = publication
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def newer(self, known: int | None) -> Publication:
        """The newest parameters, once they are newer than those that are known, or the training is over."""
        while (now := self.current) is None or not (known is None or now.version > known or now.finished):
            await self._changed.wait()
        return now
