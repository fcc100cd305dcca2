"""`dbw ps`: serve a parameter server."""

import logging
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import torch

from dbw_controller.core.spec import SyncMode
from dbw_ps.aggregate import Aggregate
from dbw_ps.checkpoint import CheckpointFolder, CheckpointFolderError, CheckpointWriter
from dbw_ps.decider import Decider
from dbw_ps.decisions import spec_message_of, spec_of
from dbw_ps.embedded import EmbeddedDecider
from dbw_ps.members import Members
from dbw_ps.messages import TYPE_NUMBERS
from dbw_ps.metrics import Metrics
from dbw_ps.model import FlatModel, load_model
from dbw_ps.optimiser import Optimiser
from dbw_ps.options import PsOptions
from dbw_ps.progress import Goal, Progress
from dbw_ps.remote import RemoteDecider
from dbw_ps.service import ParameterServerService, Terms
from dbw_ps.trainer import HopelessError, Plan, Trainer
from dbw_ps.training_log import TrainingLog
from dbw_runtime.configuration import UsageError, WrongValueError, run_program
from dbw_runtime.logs import begin_log
from dbw_runtime.memory import keep_large_buffers
from dbw_runtime.server import run

log = logging.getLogger(__name__)
DESCRIPTION = """Serve a parameter server: it gives parameters to workers, averages the first k gradients that come back
in each iteration, and updates the parameters. How many to wait for is decided by a controller (--controller), or here
by the same policies (--policy). Options come from flags, then environment variables, then the TOML file of --config."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until training is over, or SIGTERM."""
    return run_program("ps", DESCRIPTION, PsOptions, arguments, serve, CheckpointFolderError, HopelessError)


def serve(options: PsOptions) -> None:
    """Serve until training is over, or SIGTERM."""
    begin_log("ps", options)
    keep_large_buffers()
    torch.manual_seed(options.seed)
    try:
        model = FlatModel(load_model(options.model))
    except ValueError as error:
        raise WrongValueError("model", options.model, f"one that can be trained here: {error}") from error
    optimiser = Optimiser(model, options.optimizer, options.schedule, options.clip_norm)
    with ExitStack() as open_files:
        folder = None
        if options.checkpoint_dir is None:
            log.warning("there is no --checkpoint-dir: what is trained will not be kept", extra={"job": options.job})
        else:
            folder = CheckpointFolder(options.checkpoint_dir, options.checkpoints_kept)
            open_files.callback(folder.close)
        progress, numbers = begin_or_resume(options, folder, model, optimiser)
        training_log = open_training_log(options, progress)
        if training_log is not None:
            open_files.callback(training_log.close)
        metrics = Metrics(options.job)
        goal = Goal(options.iterations, options.target_loss, options.max_seconds)
        trainer = Trainer(
            Plan(options.job, goal, options.min_workers, options.max_wait, partial(make_decider, options)),
            model,
            optimiser,
            Aggregate(model.gradient, model.buffers, getattr(torch, options.accumulate)),
            Members(secrets.token_hex(8), options.worker_timeout, numbers),
            metrics,
            progress,
            checkpoint_writer(options, folder, progress, training_log),
            training_log,
        )
        terms = Terms(
            options.job,
            SyncMode(options.sync_mode),
            TYPE_NUMBERS[getattr(torch, options.gradient_type)],
            options.worker_timeout,
            options.staged_gradients,
            options.linger_seconds,
        )
        run("ps", options, ParameterServerService(trainer, terms, metrics), metrics.registry)


def begin_or_resume(
    options: PsOptions, folder: CheckpointFolder | None, model: FlatModel, optimiser: Optimiser
) -> tuple[Progress, dict[str, int]]:
    """Where training stands, and the numbers of the workers that are known."""
    found = folder.newest() if folder is not None else None
    if found is None:
        return Progress(), {}
    if not options.resume:
        raise UsageError(
            f"{options.checkpoint_dir} has checkpoints of an earlier training: "
            "go on from them with --resume, or give another folder"
        )
    iteration, state = found
    log.info("going on from the checkpoint of iteration %d", iteration, extra={"job": options.job})
    try:
        return Progress.resume(state, model, optimiser), state["workers"]
    except ValueError as error:
        raise UsageError(f"the newest checkpoint in {options.checkpoint_dir} does not fit: {error}") from error


def open_training_log(options: PsOptions, progress: Progress) -> TrainingLog | None:
    """The file for a line about every iteration, if there is to be one."""
    path = options.training_log
    if path is None:
        return None
    if not options.resume and path.exists() and path.stat().st_size:
        raise UsageError(f"the training log {path} is of an earlier training: give another path, or move it away")
    return TrainingLog(path, progress.iteration)


def checkpoint_writer(
    options: PsOptions, folder: CheckpointFolder | None, progress: Progress, training_log: TrainingLog | None
) -> CheckpointWriter | None:
    """What writes checkpoints, if there are to be any."""
    if folder is None:
        return None
    # After a power failure the log must reach at least as far as the checkpoint.
    before = training_log.sync if training_log is not None else lambda: None
    every = options.checkpoint_iterations, options.checkpoint_seconds
    return CheckpointWriter(folder, *every, progress.iteration, before=before)


def make_decider(options: PsOptions, workers: Sequence[int], iteration: int) -> Decider:
    """What decides how many gradients to wait for."""
    mode = SyncMode(options.sync_mode)
    if options.controller is None:
        return EmbeddedDecider(options.job, spec_of(options.policy, mode), workers, iteration)
    spec = spec_message_of(options.policy, mode)
    return RemoteDecider(options.client().job(options.job, workers, spec, iteration))
