"""When a training is saved, and what its job has learnt travels between checkpoints and whatever decides."""

import asyncio
import logging
from concurrent.futures import Executor
from typing import Any

from dbw_controller.client.settings import whole_state
from dbw_ps.checkpoint import CheckpointWriter
from dbw_ps.decider import Decider, Source
from dbw_ps.members import Members
from dbw_ps.progress import TrainingState

log = logging.getLogger(__name__)


class Checkpointing:
    """Saves one training, in the background but at its end. `learnt` is what its job had learnt at the last one."""

    def __init__(
        self,
        job: str,
        writer: CheckpointWriter,
        state: TrainingState,
        members: Members,
        compute: Executor,
        learnt: bytes | None = None,
    ) -> None:
        self._job, self._writer, self._state, self._members = job, writer, state, members
        self._compute, self._learnt = compute, learnt
        self._saving: asyncio.Task[None] | None = None

    def last(self, now: float) -> tuple[int | None, float | None]:
        """The iteration of the newest checkpoint that this process wrote, and how many seconds ago that was."""
        at = self._writer.last_time
        return self._writer.last_iteration, None if at is None else now - at

    async def restore_learnt(self, decider: Decider) -> None:
        """Give the job what it had learnt when the training was saved."""
        if self._learnt is not None and decider.source is not Source.FALLBACK:
            await decider.import_state(self._learnt)

    async def save_if_due(self, now: float, decider: Decider) -> None:
        """Begin to save the training as it is, between two iterations, if it is time to."""
        due = self._saving is None and self._writer.due(self._state.progress.iteration, now)
        if due and (checkpoint := await self._capture()):
            self._saving = asyncio.ensure_future(self._save(checkpoint, decider))

    async def save_last(self, decider: Decider) -> None:
        """Save what training ends with, or can be resumed from, unless that was done."""
        await self.wait()
        due = self._state.progress.iteration != self._writer.last_iteration
        if due and (checkpoint := await self._capture()):
            await self._save(checkpoint, decider)

    async def wait(self) -> None:
        """Wait for what is being saved."""
        if self._saving is not None:
            await self._saving

    async def _capture(self) -> dict[str, Any] | None:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._compute, self._state.capture, self._members.numbers)

    async def _save(self, checkpoint: dict[str, Any], decider: Decider) -> None:
        """Write a checkpoint, with what the job has learnt by now or, if that is not available, at the last one."""
        try:
            if decider.source is not Source.FALLBACK:
                await self._exchange_learnt(decider)
            checkpoint["job_state"] = self._learnt
            if await asyncio.to_thread(self._writer.write, checkpoint["iteration"], checkpoint):
                log.info("checkpoint written", extra={"job": self._job, "iteration": checkpoint["iteration"]})
        finally:
            self._saving = None

    async def _exchange_learnt(self, decider: Decider) -> None:
        """Keep what the job has learnt; or give ours back, if that is newer because the controller has lost it."""
        found = await decider.export_state()
        if found is None:
            return
        if self._learnt is not None and _learnt_iterations(found) < _learnt_iterations(self._learnt):
            log.info("giving back what the controller has lost", extra={"job": self._job})
            await decider.import_state(self._learnt)
        else:
            self._learnt = found


def _learnt_iterations(state: bytes) -> int:
    return whole_state(state).header.learnt_iterations
