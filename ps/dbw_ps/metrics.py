"""What Prometheus gets to see of a parameter server."""

import math
from collections.abc import Callable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from dbw_ps.checkpoint import CheckpointWriter
from dbw_ps.decider import Source
from dbw_ps.log_writer import LogWriter
from dbw_ps.progress import Status
from dbw_ps.rounds import End
from dbw_runtime.disk_watch import DiskWatch

# Seconds, from a toy's update to an iteration of a large model.
BOUNDS = tuple(base * 10.0**exponent for exponent in range(-4, 3) for base in (1.0, 2.5, 5.0))
PHASES = ("wait", "aggregate", "update", "publish")


class Metrics:
    """All series of one process."""

    def __init__(self, job: str) -> None:
        self.registry = registry = CollectorRegistry()
        about = {"version": version("dbw"), "dbw_job": job}
        Info("dbw_ps_build", "The version of the parameter server, and its job", registry=registry).info(about)
        self.iterations = Counter("dbw_ps_iterations", "Iterations that ended, by cause", ["cause"], registry=registry)
        self.phases = Histogram(
            "dbw_ps_iteration_phase_seconds",
            "How long iterations waited for gradients, averaged, updated and serialised parameters",
            ["phase"],
            buckets=BOUNDS,
            registry=registry,
        )
        for phase in PHASES:
            self.phases.labels(phase)
        self.gradients = Counter(
            "dbw_ps_gradients", "Gradients, by what became of them", ["outcome"], registry=registry
        )
        self.received = Counter("dbw_ps_received_bytes", "Bytes of gradients that came in", registry=registry)
        self.sent = Counter("dbw_ps_sent_bytes", "Bytes of parameters that went out", registry=registry)
        self.staged = Gauge("dbw_ps_staged_gradients", "Long gradients that are being received", registry=registry)
        self.timed_out = Counter("dbw_ps_given_up_workers", "Workers that timed out", registry=registry)

    def observe(
        self,
        status: Callable[[], Status],
        writer: CheckpointWriter | None,
        training_log: LogWriter | None,
        disk: DiskWatch,
    ) -> None:
        """Export how a training goes, and the writing of its files, whenever somebody asks."""
        self._gauge("live_workers", "Workers that are alive, and not stalled", lambda: status().live_workers)
        self._gauge("stalled_workers", "Workers whose computation takes far too long", lambda: status().stalled_workers)
        missing = "Workers that training waits for before it begins or goes on"
        self._gauge("missing_workers", missing, lambda: status().missing_workers)
        self._gauge("iteration", "The iteration under way", lambda: status().iteration)
        self._gauge("k", "Gradients that it waits for", lambda: status().k)
        self._gauge("loss", "Mean loss of the last iteration", lambda: _known(status().loss))
        self._gauge("fallback", "1 while k is no decision", lambda: status().source is Source.FALLBACK)
        replaced = "1 while another process has the job, which has taken it over"
        self._gauge("session_replaced", replaced, lambda: status().replaced)
        if writer is not None:
            age, seconds = lambda: _known(status().checkpoint_age), lambda: _known(writer.last_seconds)
            self._gauge("checkpoint_age_seconds", "Time since the newest checkpoint was written", age)
            self._gauge("checkpoint_write_seconds", "How long it took to write it", seconds)
            self._gauge("checkpoint_failures", "Checkpoints that could not be written", lambda: writer.failures)
        if training_log is not None:
            failures, dropped = lambda: training_log.failures, lambda: training_log.dropped
            self._gauge("training_log_failures", "Times that the training log could not be written", failures)
            self._gauge("training_log_dropped_lines", "Lines of the training log that were dropped", dropped)
        text = "How long the write under way has taken; 0 if there is none"
        self._gauge("disk_busy_seconds", text, lambda: disk.busy_seconds)

    def _gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(f"dbw_ps_{name}", text, registry=self.registry).set_function(value)

    def iterated(self, end: End, phases: dict[str, float]) -> None:
        """Count an iteration, and how long its phases took."""
        self.iterations.labels(end.cause.name.lower()).inc()
        for phase, seconds in phases.items():
            self.phases.labels(phase).observe(seconds)


def _known(value: float | None) -> float:
    return math.nan if value is None else value
