"""When a training is saved, and what its job has learnt travels between checkpoints and whatever decides."""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from dbw_controller.client.settings import whole_state
from dbw_ps.checkpoint import CheckpointWriter
from dbw_ps.decider import Decider, Source
from dbw_ps.log_writer import LogWriter
from dbw_ps.members import Members
from dbw_ps.options import PsOptions
from dbw_ps.progress import TrainingState
from dbw_ps.remote import iterations_of
from dbw_runtime.configuration import UsageError
from dbw_runtime.disk_watch import DiskWatch

log = logging.getLogger(__name__)
RETRY_SECONDS = 1.0  # between attempts to write the last checkpoint
FLUSH_SECONDS = 10.0  # for the training log, which may be on another disk
# A checkpoint waits this long for what the job has learnt since the last one, or is written without that.
LEARNT_SECONDS = 3.0


class Checkpointing:
    """Saves one training, in the background but at its end. `checkpoint` is what it goes on from, if it is not new."""

    def __init__(
        self,
        options: PsOptions,
        writer: CheckpointWriter,
        state: TrainingState,
        members: Members,
        compute: Executor,
        disk: DiskWatch,
        training_log: LogWriter | None = None,
        checkpoint: Mapping[str, Any] | None = None,
    ) -> None:
        self._options, self._writer, self._state, self._members = options, writer, state, members
        self._compute, self._disk, self._log, self._is_new = compute, disk, training_log, not checkpoint
        self._learnt: bytes | None = (checkpoint or {}).get("job_state")  # by the job, at the last one
        self._saving: asyncio.Task[bool] | None = None

    def last(self, now: float) -> tuple[int | None, float | None]:
        """The iteration of the newest checkpoint that this process wrote, and how many seconds ago that was."""
        at = self._writer.last_time
        return self._writer.last_iteration, None if at is None else now - at

    async def save_first(self) -> None:
        """Save a new training before it begins, so that a folder without checkpoints belongs to none that has begun.

        Raises UsageError if one has, as far as the controller knows.
        """
        if not self._is_new:
            return
        options, iteration = self._options, 0
        if options.resume and not options.fresh and options.controller is not None:
            iteration = await iterations_of(options.client(), options.job)
        if iteration > 0:
            raise missing_checkpoint(options, f"the controller's job {options.job} has come to iteration {iteration}")
        checkpoint = await self._capture()
        if checkpoint is not None and not await self._write(checkpoint | {"job_state": None}):
            raise OSError("training does not begin without its first checkpoint, which cannot be written")

    async def restore_learnt(self, decider: Decider) -> None:
        """Give the job what it had learnt when the training was saved."""
        if self._learnt is not None and decider.source is not Source.FALLBACK:
            await decider.import_state(self._learnt)

    async def save_begun(self, decider: Decider) -> None:
        """Begin to save a training that begins now, with its workers: resumed, it will not wait for all of them."""
        if not self._state.is_resumed:
            await self._begin_to_save(decider)

    async def save_if_due(self, now: float, decider: Decider) -> None:
        """Begin to save the training as it is, between two iterations, if it is time to."""
        if self._saving is None and self._writer.due(self._state.progress.iteration, now):
            await self._begin_to_save(decider)

    async def save_last(self, decider: Decider) -> bool:
        """Save what training ends with, or can be resumed from, unless that was done; returns whether it is saved.

        A disk that fails or hangs must not keep the process, so that there is a limit to how long this tries.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.last_checkpoint_seconds):
                if self._saving is not None:
                    await self._saving
                if self._state.progress.iteration == self._writer.last_iteration:
                    return True
                checkpoint = await self._capture()
                while checkpoint is not None and not await self._save(checkpoint, decider):
                    await asyncio.sleep(RETRY_SECONDS)
                return True
        return False

    async def _begin_to_save(self, decider: Decider) -> None:
        if checkpoint := await self._capture():
            self._saving = asyncio.ensure_future(self._save(checkpoint, decider))

    async def _capture(self) -> dict[str, Any] | None:
        loop, workers = asyncio.get_running_loop(), (self._members.numbers, self._members.identities)
        return await loop.run_in_executor(self._compute, self._state.capture, *workers)

    async def _save(self, checkpoint: dict[str, Any], decider: Decider) -> bool:
        """Write a checkpoint, with what the job has learnt by now or, if that is not available, at the last one."""
        try:
            if decider.source is not Source.FALLBACK:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LEARNT_SECONDS):
                        await self._exchange_learnt(decider)
            checkpoint["job_state"] = self._learnt
            return await self._write(checkpoint)
        finally:
            self._saving = None

    async def _write(self, checkpoint: dict[str, Any]) -> bool:
        if self._log is not None:  # after a power failure it must reach at least as far as the checkpoint
            await self._log.flush(FLUSH_SECONDS)
        writing = asyncio.ensure_future(asyncio.to_thread(self._writer.write, checkpoint["iteration"], checkpoint))
        self._disk.watch("a checkpoint", writing)
        if written := await writing:
            log.info("checkpoint written", extra={"job": self._options.job, "iteration": checkpoint["iteration"]})
        return written

    async def _exchange_learnt(self, decider: Decider) -> None:
        """Keep what the job has learnt; or give ours back, if that is newer because the controller has lost it."""
        found = await decider.export_state()
        if found is None:
            return
        if self._learnt is not None and _learnt_iterations(found) < _learnt_iterations(self._learnt):
            log.info("giving back what the controller has lost", extra={"job": self._options.job})
            await decider.import_state(self._learnt)
        else:
            self._learnt = found


def missing_checkpoint(options: PsOptions, problem: str) -> UsageError:
    """What to raise where a training has begun, and there is no checkpoint to go on from."""
    advice = "mount the folder that has them, or begin again with --fresh"
    return UsageError(f"{problem}, but {options.checkpoint_dir} has no usable checkpoint of it: {advice}")


def _learnt_iterations(state: bytes) -> int:
    return whole_state(state).header.learnt_iterations
