"""What Prometheus sees. Everything is read from the jobs when it asks, so that a job that ends takes its series along.

The label is `dbw_job`, because Prometheus has its own idea of a `job`.
"""

import math
import platform
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version

import grpc
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from dbw_controller.core.kernels import COMPILED
from dbw_controller.server.counters import Histogram
from dbw_controller.server.jobs import Jobs, readable
from dbw_controller.server.served_job import ServedJob

LABEL = "dbw_job"
Read = Callable[[ServedJob], float | None]
ReadByLabel = Callable[[ServedJob], Iterable[tuple[str, float]]]  # values of the label and of the metric

GAUGES: dict[str, tuple[str, Read]] = {
    "dbw_selected_k": ("Gradients to wait for in this iteration", lambda job: job.decision.k),
    "dbw_live_workers": ("Workers that are alive", lambda job: job.job.membership.live_workers),
    "dbw_loss": ("Loss of the last iteration that reported one", lambda job: job.job.loss),
    "dbw_gradient_squared_norm": (
        "Estimate of the full gradient's squared norm",
        lambda job: job.decision.estimates.gain.squared_norm,
    ),
    "dbw_gradient_variance": (
        "Estimate of the variance of one worker's gradient",
        lambda job: job.decision.estimates.gain.variance,
    ),
    "dbw_smoothness": ("Estimate of the loss's smoothness L", lambda job: job.decision.estimates.gain.smoothness),
    "dbw_predicted_iteration_seconds": ("Expected duration of this iteration", lambda job: predicted_seconds(job)),
    "dbw_unsaved_iterations": (
        "Iterations that are not in a snapshot yet, if there are snapshots",
        lambda job: job.saver.unsaved_iterations,
    ),
}
COUNTERS: dict[str, tuple[str, Read]] = {
    "dbw_iterations": ("Iterations that ended", lambda job: job.statistics.iterations),
    "dbw_predicted_seconds": (
        "Expected duration of all iterations that there was an estimate for",
        lambda job: job.statistics.predicted_seconds,
    ),
    "dbw_observed_seconds": ("Duration of the same iterations", lambda job: job.statistics.observed_seconds),
}
LABELLED_COUNTERS: dict[str, tuple[str, str, ReadByLabel]] = {
    "dbw_gradients": (
        "Gradients by what became of them",
        "outcome",
        lambda job: [
            ("used", job.statistics.used_gradients),
            ("late", job.job.late_arrivals),
            ("lost", job.statistics.lost_gradients),
        ],
    ),
    "dbw_decisions": (
        "Decisions by the rule that chose k",
        "reason",
        lambda job: [(reason.name.lower(), count) for reason, count in job.statistics.decisions.copy().items()],
    ),
    "dbw_fallbacks": (
        "Iterations whose k no estimate chose",
        "reason",
        lambda job: [(reason, job.statistics.fallbacks[reason]) for reason in ("parameter_server", "not_enough_data")],
    ),
    "dbw_skipped_estimates": (
        "Iterations that did not contribute to an estimate, by cause",
        "reason",
        lambda job: [(str(cause), count) for cause, count in job.job.gain.skipped.copy().items()],
    ),
}
HISTOGRAMS: dict[str, tuple[str, Callable[[ServedJob], Histogram]]] = {
    "dbw_iteration_duration_seconds": ("Duration of iterations", lambda job: job.statistics.iteration_seconds),
    "dbw_decision_duration_seconds": (
        "Time from a report to its decision, inside the controller",
        lambda job: job.statistics.decision_seconds,
    ),
}


def predicted_seconds(served: ServedJob) -> float | None:
    """T̂_k of the newest decision, if it is known."""
    decision = served.decision  # another one may take its place meanwhile
    durations = decision.estimates.durations
    seconds = math.nan if durations is None else float(durations.seconds[decision.k - 1])
    return None if math.isnan(seconds) else seconds


class JobCollector(Collector):
    """Reads all jobs when it is asked."""

    def __init__(self, jobs: Jobs, by_worker: bool) -> None:
        self._jobs, self._by_worker = jobs, by_worker

    def collect(self) -> Iterator[Metric]:
        """All series of all jobs."""
        jobs = self._jobs.all()
        yield _build_info()
        yield GaugeMetricFamily("dbw_jobs", "Jobs", value=len(jobs))
        failures = self._jobs.disk.failures
        yield CounterMetricFamily("dbw_snapshot_failures", "Snapshots that could not be written", value=failures)
        busy = self._jobs.disk.watch.busy_seconds
        yield GaugeMetricFamily("dbw_disk_busy_seconds", "Age of the oldest write under way, 0 without one", value=busy)
        for kind, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, (text, read) in table.items():
                family = kind(name, text, labels=[LABEL])
                for served, value in readable(jobs, read):
                    if value is not None:
                        family.add_metric([served.name], value)
                yield family
        for name, (text, label, read_by_label) in LABELLED_COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=[LABEL, label])
            for served, counts in readable(jobs, read_by_label):
                for member, count in counts:
                    counter.add_metric([served.name, member], count)
            yield counter
        for name, (text, read_histogram) in HISTOGRAMS.items():
            histograms = HistogramMetricFamily(name, text, labels=[LABEL])
            for served, histogram in readable(jobs, read_histogram):
                histograms.add_metric([served.name], histogram.buckets(), histogram.sum)
            yield histograms
        if self._by_worker:
            yield _arrivals_by_worker(jobs)


def _arrivals_by_worker(jobs: Iterable[ServedJob]) -> Metric:
    text = "Times of a worker's gradients since publication"
    arrivals = SummaryMetricFamily("dbw_worker_arrival_seconds", text, labels=[LABEL, "worker"])
    for served in jobs:
        for worker, count in served.statistics.worker_arrivals.copy().items():
            arrivals.add_metric([served.name, str(worker)], count, served.statistics.worker_seconds.get(worker, 0.0))
    return arrivals


def _build_info() -> Metric:
    about = {
        "version": version("dbw"),
        "python": platform.python_version(),
        "grpc": grpc.__version__,
        "compiled": str(COMPILED).lower(),
    }
    return InfoMetricFamily("dbw_build", "Versions of the controller and what it runs on", value=about)


def registry_of(jobs: Jobs, by_worker: bool) -> CollectorRegistry:
    """All that the controller exports."""
    registry = CollectorRegistry()
    registry.register(JobCollector(jobs, by_worker))
    return registry
