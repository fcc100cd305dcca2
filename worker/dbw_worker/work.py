"""What a worker does: take parameters, compute a gradient, send it, and again."""

import logging
import time
from collections.abc import Callable

import torch

from dbw.v1.parameter_server_pb2 import GradientOutcome
from dbw.v1.sync_mode_pb2 import SYNC_MODE_PUSH_INTERRUPT
from dbw_ps.client import Parameters, ParameterServer
from dbw_ps.pace import STALLED_FACTOR
from dbw_worker.batches import Batches
from dbw_worker.delays import Delay
from dbw_worker.gradients import Gradient, Gradients
from dbw_worker.interruption import InterruptedComputationError
from dbw_worker.metrics import Metrics
from dbw_worker.randomness import draws_of, seed_all

log = logging.getLogger(__name__)


class Worker:
    """Computes gradients for a parameter server, until training is over."""

    def __init__(
        self,
        server: ParameterServer,
        batches: Batches,
        gradients: Gradients,
        delay: Delay,
        seed: int,
        metrics: Metrics,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._batches, self._gradients, self._delay = server, batches, gradients, delay
        self._seed, self._metrics, self._device, self._now = seed, metrics, device, clock
        self._began: float | None = None  # when the first parameters came
        self._longest = 0.0  # seconds that a gradient took

    def run(self) -> None:
        """Work until training is over."""
        parameters: Parameters | None = None
        while True:
            begin = self._now()
            parameters = self._server.newer(parameters)
            self._metrics.wait.inc(self._now() - begin)
            if parameters is None:
                return
            if self._began is None:
                self._began = self._now()
            self._metrics.version.set(parameters.version)
            outcome = self._iterate(parameters)
            self._metrics.gradients.labels(outcome).inc()
            log.debug("gradient: %s", outcome, extra={"version": parameters.version})

    def problem(self, hung_after: float) -> str | None:
        """What is wrong if a gradient takes this long, and ten times as long as any before. Any thread may ask."""
        seconds = self._server.computing_seconds
        if seconds is None or seconds <= max(hung_after, STALLED_FACTOR * self._longest):
            return None
        before = f"those before took at most {self._longest:.3g} s"
        return f"the computation of a gradient hangs: it has taken {seconds:.0f} s, {before}"

    def _iterate(self, parameters: Parameters) -> str:
        """Compute a gradient and send it, if it is still of use; returns what became of it."""
        begin = self._now()
        try:
            gradient = self._compute(parameters)
        except InterruptedComputationError:
            told = self._server.complete(parameters, interrupted=True, compute_seconds=self._now() - begin)
            return "interrupted" if told else "lost"
        seconds = self._now() - begin
        self._longest = max(self._longest, seconds)
        self._metrics.compute.observe(seconds)
        if self._server.is_outdated(parameters):
            return "notified" if self._server.complete(parameters, compute_seconds=seconds) else "lost"
        outcome = self._server.push(parameters, **gradient._asdict(), compute_seconds=seconds)
        return "lost" if outcome is None else GradientOutcome.Name(outcome).removeprefix("GRADIENT_OUTCOME_").lower()

    def _compute(self, parameters: Parameters) -> Gradient:
        """Compute a gradient, and be late as told; interrupted by newer parameters if that is the mode."""
        worker, version = parameters.session.worker, parameters.version
        interrupts = parameters.session.sync_mode == SYNC_MODE_PUSH_INTERRUPT
        stop = (lambda: self._server.is_outdated(parameters)) if interrupts else (lambda: self._server.is_over)
        seed, random = draws_of(self._seed, worker, version)
        seed_all(seed, self._device)
        batch = self._batches.batch(worker, version)
        gradient = self._gradients.compute(parameters.vector, batch, stop, closely=interrupts)
        assert self._began is not None
        delay = self._delay.seconds(worker, version, self._now() - self._began, random)
        begin = self._now()
        is_stopped = delay > 0 and self._server.wait(delay, stop)
        self._metrics.delay.inc(self._now() - begin)
        if is_stopped:
            raise InterruptedComputationError
        return gradient
