"""Options of a parameter server."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dbw_controller.client import EVERY_DECISION, AsyncDbwClient, Fallback
from dbw_controller.contract import NAME, NAME_RULE
from dbw_controller.named_policies import policy_from
from dbw_ps.models import MODELS
from dbw_runtime.configuration import UsageError, WrongValueError, option
from dbw_runtime.server import ServerOptions

DEFAULT_JOB = "training"  # without a controller, where nobody else can have a job of the same name


@dataclass(frozen=True)
class PsOptions(ServerOptions):
    """Options of a parameter server."""

    listen: str = option("127.0.0.1:50052", "the address to serve gRPC on; port 0 takes a free one")
    metrics_listen: str = option("127.0.0.1:9465", "the address to serve Prometheus metrics on, at /metrics")
    max_identity_calls: int = option(4096, "how many calls one identity may have open, which workers may share")
    max_identity_rate: float = option(20_000.0, "how many requests a second one identity may make")
    job: str = option("", f"the name of the job, needed with --controller; without one it is {DEFAULT_JOB}")
    model: str = option("", f"what to train, needed: {', '.join(MODELS)}, module:function or file.py:function")
    seed: int = option(0, "the seed of the model's first parameters")
    sync_mode: Literal["push-wait", "push-interrupt", "pull"] = option("push-wait", "how parameters get to workers")
    optimizer: str = option("sgd:lr=0.1", "any of torch.optim, with its parameters, such as adamw:lr=0.001")
    schedule: str | None = option(None, "any of torch.optim.lr_scheduler, such as cosineannealinglr:t_max=1000")
    clip_norm: float | None = option(None, "the largest norm of the mean gradient; longer ones are scaled down")
    gradient_type: Literal["float32", "float16", "bfloat16", "float64"] = option(
        "float32", "the type of gradients on the wire that workers are asked for; any is taken"
    )
    accumulate: Literal["float32", "float64"] = option("float32", "the type of the sum of gradients")
    iterations: int | None = option(None, "train for this many iterations")
    target_loss: float | None = option(None, "train until the mean loss of ten iterations is at most this")
    max_seconds: float | None = option(None, "train for this many seconds, all runs together; seen as iterations end")
    min_workers: int = option(1, "how many workers to wait for before training begins")
    max_workers: int = option(
        10_000, "how many workers may ever join, all runs together; their ids are kept, also in checkpoints"
    )
    worker_identities: str | None = option(
        None, "the identities that may join as workers, separated by commas; by default all that are let in"
    )
    rejoin_seconds: float = option(
        60.0,
        "how long a resumed training waits for --min-workers, and any for others where a few send outliers only",
    )
    worker_timeout: float = option(30.0, "seconds without a message after which a worker times out")
    max_wait: float | None = option(None, "end iterations after this many seconds with the gradients that are in")
    staged_gradients: int = option(
        1,
        "how many long gradients to receive at once, or twice as many if some are slow; each takes its size in memory",
    )
    max_norm_ratio: float = option(
        1000.0, "refuse gradients whose norm, or that of their buffers, is more than this times the usual; 0: none"
    )
    linger_seconds: float = option(30.0, "how long to serve workers after training, for them to take notice")
    controller: str | None = option(None, "the controller, HOST:PORT; without one, decisions are made here")
    policy: str | None = option(
        None, "how k is chosen: dbw-plus, dbw, b-dbw, sync, static:8, adasync; by default as the controller does"
    )
    decision_deadline: float = option(1.0, "seconds to wait for a decision before going on without, at most")
    decision_share: float = option(0.05, "and at most this share of an iteration, but for the first decision")
    fallback: Fallback = option("last", "k without a controller: the last one, or all workers")
    on_replaced: Literal["retry", "exit"] = option(
        "retry",
        "what to do when another process takes the job over: go on without decisions until that one has gone, or end",
    )
    controller_tls: bool = option(False, "talk to the controller over TLS, with the system's authorities")
    controller_tls_ca: Path | None = option(None, "authorities (PEM) of the controller's certificate")
    controller_tls_cert: Path | None = option(None, "our certificate (PEM), for a controller that asks for one")
    controller_tls_key: Path | None = option(None, "its private key (PEM)")
    controller_token_file: Path | None = option(None, "a file that holds a bearer token for the controller")
    checkpoint_dir: Path | None = option(None, "the folder for checkpoints; without it training cannot be resumed")
    checkpoint_iterations: int = option(0, "write a checkpoint every this many iterations; 0: not by iterations")
    checkpoint_seconds: float = option(60.0, "write a checkpoint every this many seconds; 0: not by time")
    checkpoints_kept: int = option(3, "how many of the newest checkpoints to keep, beside that of the lowest loss")
    hourly_checkpoints_kept: int = option(24, "of how many hours to keep the last checkpoint as well; 0: of none")
    last_checkpoint_seconds: float = option(
        60.0, "how long to try to write the last checkpoint where the disk fails or hangs, before ending without it"
    )
    resume: bool = option(False, "go on from the newest checkpoint, if there is one")
    fresh: bool = option(
        False,
        "where --resume finds no checkpoint, begin again even if the log or the controller's job is further;"
        " remove it once training has begun",
    )
    training_log: Path | None = option(None, "a file for a line of JSON about every iteration")

    def __post_init__(self) -> None:
        """Refuse options that contradict each other or make no sense."""
        super().__post_init__()
        if not self.model:
            raise UsageError(f"--model is needed: {', '.join(MODELS)}, package.module:function or file.py:function")
        if not self.job:
            object.__setattr__(self, "job", self._default_job())
        if not NAME.fullmatch(self.job):
            raise WrongValueError("job", self.job, NAME_RULE)
        self.require_between("seed", 0, 2**63 - 1)
        self.require_between("max_workers", 1, 10**6)
        self.require_between("min_workers", 1, min(self.max_workers, 2**16))
        self.require_between("rejoin_seconds", 0, 10**7)
        self.require_between("worker_timeout", 0.1, 86_400)
        self.require_between("staged_gradients", 1, 2**16)
        if self.max_norm_ratio:
            self.require_between("max_norm_ratio", 2, 1e30)
        self.require_between("linger_seconds", 0, 86_400)
        self.require_between("decision_deadline", 0.001, 3600)
        self.require_between("decision_share", 0, EVERY_DECISION)
        self.require_between("checkpoint_iterations", 0, 2**31)
        self.require_between("checkpoint_seconds", 0, 10**7)
        self.require_between("checkpoints_kept", 1, 10**6)
        self.require_between("hourly_checkpoints_kept", 0, 10**6)
        self.require_between("last_checkpoint_seconds", 0.1, 86_400)
        for name in ("clip_norm", "max_wait", "max_seconds"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < math.inf:
                raise WrongValueError(name, getattr(self, name), "finite and more than 0")
        if self.iterations is not None:
            self.require_between("iterations", 0, 2**62)
        if self.worker_identities is not None and not self.allowed_identities:
            raise WrongValueError("worker_identities", self.worker_identities, "identities, separated by commas")
        if self.worker_identities is not None and self.token_file is None and self.tls_client_ca is None:
            raise UsageError(
                "--worker-identities needs --token-file or --tls-client-ca: otherwise nobody has an identity"
            )
        if self.policy is not None:
            policy_from(self.policy)
        if self.controller is not None:
            try:
                self.client()
            except (ValueError, OSError) as error:
                raise UsageError(f"the controller cannot be used: {error}") from error
        if self.resume and self.checkpoint_dir is None:
            raise UsageError("--resume needs --checkpoint-dir, the folder to resume from")
        if self.fresh and not self.resume:
            raise UsageError("--fresh needs --resume: without that a training always begins at its first iteration")

    @property
    def allowed_identities(self) -> frozenset[str] | None:
        """The identities that may join as workers; None: all that are let in."""
        names = None if self.worker_identities is None else self.worker_identities.split(",")
        return None if names is None else frozenset(name.strip() for name in names if name.strip())

    def _default_job(self) -> str:
        if self.controller is None:
            return DEFAULT_JOB
        proposal = re.sub(r"[^A-Za-z0-9]+", "-", self.model).strip("-")[:64] or DEFAULT_JOB
        raise UsageError(
            "--job is needed with --controller: of two trainings with one name the later takes the earlier one's job."
            f" Name it after the training and whose it is, such as --job {proposal}-alice"
        )

    def client(self) -> AsyncDbwClient:
        """How to talk to the controller."""
        assert self.controller is not None
        files = self.controller_tls_ca, self.controller_tls_cert, self.controller_tls_key, self.controller_token_file
        patience = self.decision_deadline, self.fallback
        return AsyncDbwClient(self.controller, *patience, self.controller_tls, *files, self.decision_share)
