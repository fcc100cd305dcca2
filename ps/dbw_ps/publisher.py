"""The newest parameters, everybody who waits for them, and a few older ones that are still being fetched."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import pieces
from dbw_ps.model import FlatModel
from dbw_ps.tensors import bytes_of

# How many versions stay in memory, beside the newest, for those who are still fetching them.
MAX_KEPT = 2


@dataclass(eq=False)
class Publication:
    """Parameters of one version, serialised once for all workers."""

    version: int
    finished: bool  # whether the training is over
    pieces: list[bytes]  # emptied when they were replaced and are not kept: a reader that is stuck keeps no memory
    readers: int = 0  # calls that want to send all of it, also if it is replaced meanwhile

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
    """Holds the newest parameters, and at most MAX_KEPT older versions that are still being fetched.

    Such a version loses its place after `patience` seconds, if another one needs it.
    """

    def __init__(self, patience: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.current: Publication | None = None
        self._kept: deque[tuple[Publication, float]] = deque()  # with the times when they were replaced, oldest first
        self._patience, self._now = patience, clock
        self._changed = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """Whether training is over."""
        return self.current is not None and self.current.finished

    def publish(self, publication: Publication) -> None:
        """Replace the parameters by newer ones."""
        replaced, self.current = self.current, publication
        if replaced is not None:
            self._keep_or_drop(replaced)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _keep_or_drop(self, replaced: Publication) -> None:
        now = self._now()
        if replaced.readers and len(self._kept) == MAX_KEPT and now - self._kept[0][1] > self._patience:
            self._kept.popleft()[0].pieces.clear()
        if replaced.readers and len(self._kept) < MAX_KEPT:
            self._kept.append((replaced, now))
        else:
            replaced.pieces.clear()

    @contextmanager
    def fetching(self, publication: Publication) -> Iterator[None]:
        """Keep parameters while this lasts, if there is room; if not, their pieces are gone once there are newer."""
        publication.readers += 1
        try:
            yield
        finally:
            publication.readers -= 1
            if not publication.readers and publication is not self.current:
                publication.pieces.clear()
                self._kept = deque(kept for kept in self._kept if kept[0] is not publication)

    async def newer(self, known: int | None) -> Publication:
        """The newest parameters, once they are newer than those that are known, or the training is over."""
        while (now := self.current) is None or not (known is None or now.version > known or now.finished):
            await self._changed.wait()
        return now
