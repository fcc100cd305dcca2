"""`dbw controller`: serve a controller."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc

from dbw_controller.contract import PIECE_BYTES
from dbw_controller.core.errors import InvalidValueError, JobError
from dbw_controller.core.estimators.durations import Solver
from dbw_controller.core.estimators.reference import require_cvxpy
from dbw_controller.core.policies import DEFAULT
from dbw_controller.core.reports import MAX_WORKERS
from dbw_controller.named_policies import load_installed_policies, load_policy, policy_from
from dbw_controller.server.jobs import Jobs
from dbw_controller.server.metrics import registry_of
from dbw_controller.server.quotas import DEFAULT_LIMITS, JobLimits
from dbw_controller.server.service import ControllerService, Limits
from dbw_controller.server.store import SnapshotStore
from dbw_runtime.configuration import UsageError, WrongValueError, option, run_program
from dbw_runtime.durable import FolderError
from dbw_runtime.logs import begin_log
from dbw_runtime.server import ServerOptions, run, serving

# After this time a thread that computes lets the event loop go on, where decisions are made. Python's default is 5 ms.
SWITCH_SECONDS = 0.0005
DESCRIPTION = """Serve a controller: it tells parameter servers, over gRPC, how many gradients to wait for in every
iteration. Options come from flags, then environment variables, then the TOML file of --config."""


@dataclass(frozen=True)
class ControllerOptions(ServerOptions):
    """Options of a controller."""

    listen: str = option("127.0.0.1:50051", "the address to serve gRPC on; port 0 takes a free one")
    metrics_listen: str = option("127.0.0.1:9464", "the address to serve Prometheus metrics on, at /metrics")
    state_dir: Path | None = option(None, "the folder to keep jobs in over restarts; without it they are lost")
    save_iterations: int = option(100, "how many iterations of a job a crash may lose, if the disk keeps up")
    policies: str | None = option(
        None, "policies of your own that jobs may name: package.module:Class or file.py:Class, separated by commas"
    )
    default_policy: str = option(DEFAULT, "the policy of jobs that do not name one, such as dbw or static:8")
    solver: Literal["exact", "cvxpy"] = option("exact", "what solves for durations; cvxpy is slow, for comparison")
    worker_metrics: bool = option(False, "export a series for every worker of every job")
    max_message_bytes: int = option(PIECE_BYTES + 2**16, "the largest message to take in: a piece of a state, and some")
    max_jobs: int = option(1000, "how many jobs there may be")
    max_identity_jobs: int = option(
        DEFAULT_LIMITS.identity_jobs, "how many of them one identity may have, if it has one"
    )
    max_identity_bytes: int = option(
        DEFAULT_LIMITS.identity_bytes, "memory that the jobs of one identity may take, roughly"
    )
    max_total_bytes: int = option(DEFAULT_LIMITS.total_bytes, "memory that all jobs may take, roughly")
    max_workers: int = option(min(MAX_WORKERS, 4096), "how many workers a job may have; it needs memory for all pairs")
    max_state_bytes: int = option(256 * 2**20, "the largest state that may be imported")
    silent_days: float = option(7.0, "days after which a job is deleted that nobody reports for; 0: never")

    def __post_init__(self) -> None:
        """Refuse options that contradict each other or make no sense."""
        super().__post_init__()
        self.require_between("save_iterations", 1, 2**31)
        self.require_between("max_jobs", 1, 2**31)
        self.require_between("max_identity_jobs", 1, 2**31)
        self.require_between("max_identity_bytes", 1, 2**50)
        self.require_between("max_total_bytes", 1, 2**50)
        self.require_between("max_workers", 1, MAX_WORKERS)
        self.require_between("max_state_bytes", 1, 2**40)
        self.require_between("silent_days", 0, 36_500)
        try:
            for place in filter(None, (self.policies or "").split(",")):
                load_policy(place.strip(), "policies")
        except InvalidValueError as error:
            raise WrongValueError("policies", self.policies, f"classes of policies ({error})") from None
        policy_from(self.default_policy, "default_policy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM."""
    return run_program("controller", DESCRIPTION, ControllerOptions, arguments, serve, FolderError)


def serve(options: ControllerOptions, others: Sequence[grpc.GenericRpcHandler] = ()) -> None:
    """Serve until SIGTERM, beside other handlers if there are any."""
    begin_log("controller", options)
    load_installed_policies()
    if options.solver == "cvxpy":
        try:
            require_cvxpy()
        except JobError as error:
            raise UsageError(str(error)) from error
    store = None if options.state_dir is None else SnapshotStore(options.state_dir)
    job_limits = JobLimits(options.max_identity_jobs, options.max_identity_bytes, options.max_total_bytes)
    jobs = Jobs(store, options.max_jobs, options.save_iterations, Solver(options.solver), limits=job_limits)
    sys.setswitchinterval(SWITCH_SECONDS)
    limits = Limits(options.max_workers, options.max_state_bytes, options.silent_days * 86_400)
    service = ControllerService(jobs, limits, policy_from(options.default_policy), options.worker_metrics)
    run(serving("controller", options, service, registry_of(jobs, options.worker_metrics), others))
