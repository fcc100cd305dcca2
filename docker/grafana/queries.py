"""How series of the three services are asked for, and brought together with names that people know."""

from grafana import Query

# A controller's series have the label of the job. A parameter server tells its job once, in dbw_ps_build_info, and a
# worker does not know it: its series are of all jobs.
CONTROLLER = 'instance=~"$controller"'
JOB = f'{CONTROLLER}, dbw_job=~"$job"'
PROCESS = f'job="dbw-controller", {CONTROLLER}'


def rate(series: str) -> str:
    """How much a counter grows in a second."""
    return f"rate({series}[$__rate_interval])"


def mean(series: str, labels: str = "") -> str:
    """The mean of what a histogram or summary has observed; nothing where nothing was, rather than 0/0."""
    return f"{rate(f'{series}_sum{labels}')} / ({rate(f'{series}_count{labels}')} > 0)"


def of_server(expr: str) -> str:
    """Series of parameter servers: those of the jobs that are chosen, with the name of the job."""
    return f'({expr}) * on (job, instance) group_left (dbw_job) dbw_ps_build_info{{dbw_job=~"$job"}}'


def of_worker(expr: str) -> str:
    """Series of workers: those that are chosen, with their id."""
    return f'({expr}) * on (job, instance) group_left (worker_id) dbw_worker_build_info{{worker_id=~"$worker"}}'


def quantile(share: float) -> Query:
    """What so many decisions do not exceed."""
    buckets = rate(f"dbw_decision_duration_seconds_bucket{{{JOB}}}")
    expr = f"histogram_quantile({share}, sum by (instance, le) ({buckets})) >= 0"  # NaN where there were none
    return Query(expr, f"p{share * 100:g} {{{{instance}}}}")
