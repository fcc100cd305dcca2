"""What Prometheus gets to see of a worker."""

from collections.abc import Callable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

# Seconds, from a toy's gradient to one that takes minutes.
BOUNDS = tuple(base * 10.0**exponent for exponent in range(-3, 3) for base in (1.0, 2.5, 5.0))


class Metrics:
    """All series of one worker."""

    def __init__(self, worker_id: str) -> None:
        self.registry = registry = CollectorRegistry()
        about = {"version": version("dbw"), "worker_id": worker_id}
        Info("dbw_worker_build", "The version of the worker, and its id", registry=registry).info(about)
        self.gradients = Counter(
            "dbw_worker_gradients", "Gradients, by what became of them", ["outcome"], registry=registry
        )
        self.compute = Histogram(
            "dbw_worker_compute_seconds",
            "How long gradients took that came to their end, injected delays included",
            buckets=BOUNDS,
            registry=registry,
        )
        self.delay = Counter("dbw_worker_delay_seconds", "Delays that were injected", registry=registry)
        self.wait = Counter("dbw_worker_wait_seconds", "Time spent waiting for parameters", registry=registry)
        self.version = Gauge("dbw_worker_version", "The version of the newest parameters", registry=registry)

    def observe(self, computing_seconds: Callable[[], float | None]) -> None:
        """Export how long the gradient has taken that is being computed, whenever somebody asks."""
        text = "How long the gradient has taken that is being computed; 0 between two"
        gauge = Gauge("dbw_worker_computing_seconds", text, registry=self.registry)
        gauge.set_function(lambda: computing_seconds() or 0.0)
