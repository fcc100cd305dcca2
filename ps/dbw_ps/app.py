"""`dbw ps`: serve a parameter server."""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import torch

from dbw_ps.aggregate import Aggregate
from dbw_ps.checkpoint import CheckpointFolder, CheckpointWriter
from dbw_ps.checkpointing import Checkpointing, missing_checkpoint
from dbw_ps.collector import GradientCollector, NoUsableGradientsError
from dbw_ps.decider import JobTakenOverError
from dbw_ps.intake import Intake
from dbw_ps.log_writer import LogWriter
from dbw_ps.members import Members
from dbw_ps.metrics import Metrics
from dbw_ps.model import load_flat_model
from dbw_ps.optimiser import Optimiser
from dbw_ps.options import PsOptions
from dbw_ps.outliers import Outliers
from dbw_ps.progress import Progress, TrainingState
from dbw_ps.publisher import Publisher
from dbw_ps.rounds import Rounds
from dbw_ps.service import ParameterServerService
from dbw_ps.trainer import Trainer
from dbw_ps.training_log import TrainingLog, has_entries
from dbw_runtime.configuration import UsageError, run_program
from dbw_runtime.disk_watch import DiskWatch
from dbw_runtime.durable import FolderError
from dbw_runtime.logs import begin_log
from dbw_runtime.memory import keep_large_buffers
from dbw_runtime.server import run, serving

log = logging.getLogger(__name__)
FAILURES = FolderError, NoUsableGradientsError, JobTakenOverError  # that users can understand
DESCRIPTION = """Serve a parameter server: it gives parameters to workers, averages the first k gradients that come back
in each iteration, and updates the parameters. How many to wait for is decided by a controller (--controller), or here
by the same policies (--policy). Options come from flags, then environment variables, then the TOML file of --config."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until training is over, or SIGTERM."""
    return run_program("ps", DESCRIPTION, PsOptions, arguments, serve, *FAILURES)


def serve(options: PsOptions) -> None:
    """Serve until training is over, or SIGTERM."""
    begin_log("ps", options)
    keep_large_buffers()
    torch.manual_seed(options.seed)
    with ExitStack() as resources:
        service, metrics = assemble(options, resources)
        run(serving("ps", options, service, metrics.registry, close_files=resources.close))


def assemble(
    options: PsOptions, resources: ExitStack, clock: Callable[[], float] = time.monotonic
) -> tuple[ParameterServerService, Metrics]:
    """Make all parts of a parameter server, and connect them."""
    model = load_flat_model(options.model)
    optimiser = Optimiser(model, options.optimizer, options.schedule, options.clip_norm)
    folder, checkpoint = None, dict[str, Any]()
    if options.checkpoint_dir is None:
        log.warning("there is no --checkpoint-dir: what is trained will not be kept", extra={"job": options.job})
    else:
        keep = options.checkpoints_kept, options.hourly_checkpoints_kept
        folder = resources.enter_context(closing(CheckpointFolder(options.checkpoint_dir, *keep)))
        checkpoint = newest_checkpoint(options, folder)
    try:
        state = TrainingState.begin(model, optimiser, checkpoint)
    except ValueError as error:
        raise UsageError(f"the newest checkpoint in {options.checkpoint_dir} does not fit: {error}") from error
    disk = DiskWatch(clock)
    training_log = open_training_log(options, not checkpoint, state.progress, disk, resources)
    compute = resources.enter_context(ThreadPoolExecutor(1, "compute"))
    metrics = Metrics(options.job)
    publisher = Publisher(2 * options.worker_timeout, clock)
    known = checkpoint.get("workers"), checkpoint.get("worker_identities")
    limits = options.max_workers, options.allowed_identities
    members = Members(secrets.token_urlsafe, options.worker_timeout, *known, *limits)
    aggregate = Aggregate(model.gradient, model.buffers, getattr(torch, options.accumulate))
    rounds = Rounds(state.progress.iteration, options.max_wait)
    outliers = Outliers(options.max_norm_ratio, state.progress.usual_norms)
    collector = GradientCollector(rounds, members, aggregate, outliers, clock, options.rejoin_seconds)
    writer, checkpoints = None, None
    if folder is not None:
        every = options.checkpoint_iterations, options.checkpoint_seconds
        writer = CheckpointWriter(folder, *every, state.progress.iteration, clock)
        checkpoints = Checkpointing(options, writer, state, members, compute, disk, training_log, checkpoint)
    trainer = Trainer(options, state, collector, publisher, compute, metrics, checkpoints, training_log)
    metrics.observe(trainer.status, writer, training_log, disk)
    intake = Intake(options, model.layout, collector, metrics)
    return ParameterServerService(options, model.layout, trainer, members, intake, publisher, metrics), metrics


def newest_checkpoint(options: PsOptions, folder: CheckpointFolder) -> dict[str, Any]:
    """What the newest checkpoint holds; nothing if there is none."""
    found = folder.newest()
    if found is None:
        return {}
    if not options.resume:
        advice = "go on from them with --resume, or give another folder"
        raise UsageError(f"{options.checkpoint_dir} has checkpoints of an earlier training: {advice}")
    log.info("going on from the checkpoint of iteration %d", found[0], extra={"job": options.job})
    return found[1]


def open_training_log(
    options: PsOptions, is_new: bool, progress: Progress, disk: DiskWatch, resources: ExitStack
) -> LogWriter | None:
    """The file for a line about every iteration, if there is to be one."""
    path = options.training_log
    if path is None:
        return None
    if not options.resume and path.exists() and path.stat().st_size:
        raise UsageError(f"the training log {path} is of an earlier training: give another path, or move it away")
    if is_new and options.resume and not options.fresh and has_entries(path):
        raise missing_checkpoint(options, f"the training log {path} is of a training that has begun")
    return resources.enter_context(closing(LogWriter(TrainingLog(path, progress.iteration), disk)))
