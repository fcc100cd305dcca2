"""How long an iteration really takes for each k, by trying."""

from functools import cache
from pathlib import Path
from statistics import fmean

from dbw_controller.core.spec import SyncMode
from dbw_experiments.laboratory.cluster import Cluster
from dbw_experiments.laboratory.runs import Run
from dbw_worker.delays import parse_delay

GRADIENTS = 50_000  # about this many are waited for to know true means: two seconds, and an error of a percent or two
MIN_ITERATIONS = 500  # for each k


@cache
def true_durations(run: Run, folder: Path) -> list[float]:
    """The mean duration of an iteration in virtual seconds, for each static k from 1 to n, in the run's cluster.

    The folder is where traces of delays are.
    """
    means, iterations = [], max(MIN_ITERATIONS, GRADIENTS // run.workers**2)
    for k in range(1, run.workers + 1):
        cluster = Cluster(run.workers, parse_delay(run.delay, folder), run.seed, SyncMode(run.sync_mode))
        means.append(fmean(cluster.iterate(k).end.seconds for _ in range(iterations)))
    return means
