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


def job(series: str, what: str = "") -> Query:
    """Series that a controller has of the jobs that are chosen."""
    return Query(f"{series}{{{JOB}}}", f"{{{{dbw_job}}}} {what}".rstrip())


def server(expr: str, what: str = "") -> Query:
    """Series of parameter servers: those of the jobs that are chosen, with the name of the job."""
    named = f'({expr}) * on (job, instance) group_left (dbw_job) dbw_ps_build_info{{dbw_job=~"$job"}}'
    return Query(named, f"{{{{dbw_job}}}} {what}".rstrip())


def worker(expr: str, what: str = "") -> Query:
    """Series of workers: those that are chosen, with their id."""
    named = f'({expr}) * on (job, instance) group_left (worker_id) dbw_worker_build_info{{worker_id=~"$worker"}}'
    return Query(named, f"{{{{worker_id}}}} {what}".rstrip())


def quantile(share: float) -> Query:
    """What this share of decisions does not exceed."""
    buckets = rate(f"dbw_decision_duration_seconds_bucket{{{JOB}}}")
    expr = f"histogram_quantile({share}, sum by (instance, le) ({buckets})) >= 0"  # NaN where there were none
    return Query(expr, f"p{share * 100:g} {{{{instance}}}}")
