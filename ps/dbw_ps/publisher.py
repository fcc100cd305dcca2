"""The newest parameters, everybody who waits for them, and a few older ones that are still being fetched."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import pieces
from dbw_ps.model import FlatModel
from dbw_ps.tensors import bytes_of

# How many versions stay in memory, beside the newest, for those who are still fetching them.
# Each worker has one of these places at most, and all observers together one, so that nobody can take all of them.
MAX_KEPT = 3
# Stands for all readers that have no session, where others are the numbers of workers.
OBSERVERS = -1


@dataclass(eq=False)
class Publication:
    """Parameters of one version, serialised once for all workers."""

    version: int
    finished: bool  # whether the training is over
    pieces: list[bytes]  # emptied when they were replaced and are not kept: a reader that is stuck keeps no memory
    # For whom calls want to send all of it, also if it is replaced meanwhile; once for each call.
    readers: list[int] = field(default_factory=list)

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

    Each is kept for one worker, or for all observers, and loses its place after
    `patience` seconds if another one needs it.
    """

    def __init__(self, patience: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.current: Publication | None = None
        self._kept: dict[int, tuple[Publication, float]] = {}  # by readers, with the times when they were replaced
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
            self._keep_or_drop(replaced, self._now())
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _keep_or_drop(self, replaced: Publication, since: float) -> None:
        """Keep it for one of its readers that has no place yet, workers first."""
        for reader in sorted(set(replaced.readers), reverse=True):
            self._make_room(reader)
            if reader not in self._kept and len(self._kept) < MAX_KEPT:
                self._kept[reader] = (replaced, since)
                return
        replaced.pieces.clear()

    def _make_room(self, reader: int) -> None:
        """Drop what is in the way of another version for this reader, if it has had its time."""
        if reader in self._kept:
            in_the_way = reader
        elif len(self._kept) == MAX_KEPT:
            in_the_way = min(self._kept, key=lambda one: self._kept[one][1])
        else:
            return
        publication, since = self._kept[in_the_way]
        if self._now() - since > self._patience:
            del self._kept[in_the_way]
            publication.pieces.clear()

    @contextmanager
    def fetching(self, publication: Publication, reader: int = OBSERVERS) -> Iterator[None]:
        """Keep parameters while this lasts, if there is room; if not, their pieces are gone once there are newer."""
        publication.readers.append(reader)
        try:
            yield
        finally:
            publication.readers.remove(reader)
            kept, since = self._kept.get(reader, (None, 0.0))
            if kept is publication and reader not in publication.readers:
                del self._kept[reader]
                self._keep_or_drop(publication, since)

    async def newer(self, known: int | None) -> Publication:
        """The newest parameters, once they are newer than those that are known, or the training is over."""
        while (now := self.current) is None or not (known is None or now.version > known or now.finished):
            await self._changed.wait()
        return now
