"""Jobs and reports for tests."""

from typing import Any

import numpy as np

from dbw_controller.core.job import Job
from dbw_controller.core.policies import Dbw
from dbw_controller.core.reports import Arrivals, GradientMoments, IterationSummary, Membership, Report
from dbw_controller.core.spec import JobSpec

MOMENTS = GradientMoments(2.0, sum_squared_norms=12.0)


def summary(iteration: int, k: int = 4, **fields: Any) -> IterationSummary:
    return IterationSummary(iteration, k, **{"duration_seconds": 1.0, "loss": 1.0, "learning_rate": 0.1, **fields})


def full_report(iteration: int, k: int = 4, times: tuple[float, ...] = (1.0, 1.1, 1.2, 3.0), **fields: Any) -> Report:
    arrivals = Arrivals(iteration, np.array(times), workers=np.arange(len(times)))
    return Report([arrivals], summary(iteration, k, **{"moments": MOMENTS, **fields}))


def new_job(workers: int = 4, iteration: int | None = 0, **spec: Any) -> Job:
    return Job(JobSpec(**{"policy": Dbw(), **spec}), Membership(workers), iteration)


def trained_job(iterations: int = 6, **spec: Any) -> Job:
    job = new_job(**spec)
    for iteration in range(iterations):
        job.report(full_report(iteration, job.decision().k, loss=2.0 - 0.1 * iteration))
    return job


def seconds(job: Job) -> list[float]:
    return [float(x) for x in job.durations.estimate().seconds]
