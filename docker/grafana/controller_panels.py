"""What the controller tells: of trainings, of its decisions and of itself."""

from grafana import Graph, Query, Row, Stat, Table
from queries import CONTROLLER, JOB, PROCESS, job, mean, quantile, rate

OVERVIEW = Row(
    1,
    "Overview",
    Stat(
        10,
        "Controller",
        "Whether Prometheus can scrape the controller.",
        "when it is down: trainings go on, with a k of their parameter servers' own. Alert DbwControllerDown.",
        [Query(f"up{{{PROCESS}}}", "{{instance}}")],
        words={0: ("down", "red"), 1: ("up", "green")},
    ),
    Stat(
        11,
        "Controller has run for",
        "Time since the process was started.",
        "when it is short and nobody restarted it: look at the end of its log, and for a memory limit.",
        [Query(f"time() - process_start_time_seconds{{{PROCESS}}}", "{{instance}}")],
        unit="s",
    ),
    Stat(
        12,
        "Jobs",
        "Trainings that the controller knows, also those that stand still.",
        "when it nears --max-jobs: jobs of trainings that were killed stay for --silent-days, or until dbw delete.",
        [Query(f"dbw_jobs{{{CONTROLLER}}}", "{{instance}}")],
    ),
    Stat(
        13,
        "Services that answer",
        "How many controllers, parameter servers and workers Prometheus can scrape.",
        "when it is less than you started: `up == 0` tells which.",
        [Query('sum by (job) (up{job=~"dbw-(controller|ps|worker)"})', "{{job}}")],
    ),
    Table(
        14,
        "Alerts",
        "Alerts of DBW that fire, or will if it goes on like this (pending).",
        "when there is one that fires; docs/operations.md has a section for each.",
        [Query('ALERTS{alertname=~"Dbw.+"}', instant=True)],
        columns=["alertname", "alertstate", "severity", "dbw_job", "instance"],
        width=8,
    ),
    Table(
        15,
        "Versions",
        "How many processes of each kind run which version.",
        "when there are several versions of a kind, and no upgrade is under way.",
        [Query('count by (job, version) ({__name__=~"dbw(_ps|_worker)?_build_info"})', instant=True)],
        columns=["job", "version", "Value"],
        width=4,
    ),
)

TRAINING = Row(
    2,
    "Training, as the controller sees it",
    Graph(
        20,
        "k and live workers",
        "How many gradients an iteration waits for, on average, and how many workers could send one.",
        "when workers disappear. A k far below them is DBW at work: see which workers are late, below.",
        [
            Query(f"avg_over_time(dbw_selected_k{{{JOB}}}[$__rate_interval])", "{{dbw_job}} k"),
            job("dbw_live_workers", "live workers"),
        ],
    ),
    Graph(
        21,
        "Loss",
        "Mean loss of the mini-batches of the last iteration.",
        "when it grows for long, or stands still at one value: a loss that is not finite is not taken.",
        [job("dbw_loss")],
        unit="short",
    ),
    Graph(
        22,
        "Iteration time, predicted and observed",
        "Mean time from the publication of parameters to the last gradient that was waited for, and what the "
        "controller expected for the k that it chose.",
        "when they are far apart for more than a few minutes: k is chosen for a cluster that is not there.",
        [
            Query(mean("dbw_iteration_duration_seconds", f"{{{JOB}}}"), "{{dbw_job}} observed"),
            Query(
                f"avg_over_time(dbw_predicted_iteration_seconds{{{JOB}}}[$__rate_interval])",
                "{{dbw_job}} predicted",
            ),
        ],
        unit="s",
    ),
    Graph(
        23,
        "Iterations per second",
        "How fast training goes. A smaller k makes more, but noisier, iterations.",
        "when it is 0 and training should go on: has the parameter server ended, or no workers?",
        [Query(rate(f"dbw_iterations_total{{{JOB}}}"), "{{dbw_job}}")],
        unit="cps",
    ),
    Graph(
        24,
        "Gradients by outcome",
        "Gradients a second: used, late (after the k-th) or lost (with a worker or a connection, or rejected).",
        "when many are lost: workers die, the network breaks, or gradients are not finite.",
        [Query(rate(f"dbw_gradients_total{{{JOB}}}"), "{{dbw_job}} {{outcome}}")],
        unit="cps",
        stacked=True,
    ),
    Graph(
        25,
        "Work that is not used",
        "Share of gradients that came late, and share of workers that were not waited for, over five minutes.",
        "when the first is above 30% or the second above 50% for half an hour (alert DbwStragglingCluster): "
        "training is not held up, but machines are paid for in vain.",
        [
            job("dbw:late_gradients:ratio_rate5m", "late"),
            Query(f"1 - dbw:selected_k:ratio_avg5m{{{JOB}}}", "{{dbw_job}} not waited for"),
        ],
        unit="percentunit",
        limits=[0.3, 0.5],
    ),
    Graph(
        26,
        "Predicted over observed time",
        "How long iterations were expected to take, relative to how long they took: 1 is perfect.",
        "above 2 or below 0.5 for ten minutes (alert DbwPredictionsOff): the cluster has changed faster than the "
        "estimates forget, or the parameter server measures something else.",
        [job("dbw:prediction:ratio_rate5m")],
        limits=[0.5, 2],
    ),
)

DECISIONS = Row(
    4,
    "Decisions",
    Graph(
        40,
        "Decisions per second",
        "How many decisions the controller makes for the jobs that are chosen.",
        "when it nears what a controller can do, some thousand a second: docs/controller.md has numbers.",
        [Query(f"sum by (instance) ({rate(f'dbw_decision_duration_seconds_count{{{JOB}}}')})", "{{instance}}")],
        unit="cps",
    ),
    Graph(
        41,
        "Decision latency",
        "Time from a report to its decision inside the controller, without the network: median, and what one in a "
        "hundred exceeds.",
        "when p99 is above 25 ms and above a tenth of an iteration for ten minutes (alert DbwDecisionsSlow).",
        [quantile(0.5), quantile(0.99)],
        unit="s",
        limits=[0.025],
    ),
    Graph(
        42,
        "Decisions by reason",
        "Which rule chose k: best_rate is the largest estimated gain per second, the rule of DBW.",
        "when no_positive_gain or loss_increased stay frequent: the learning rate may be too high.",
        [Query(f"sum by (reason) ({rate(f'dbw_decisions_total{{{JOB}}}')})", "{{reason}}")],
        unit="cps",
        stacked=True,
    ),
    Graph(
        43,
        "Fallbacks by reason",
        "Share of iterations whose k no estimate chose, because the parameter server did not get a decision in "
        "time, or the controller had too little data.",
        "above 10% (parameter_server) or 50% (not_enough_data) for a quarter of an hour: alert "
        "DbwEstimatorFallingBack.",
        [job("dbw:fallbacks:ratio_rate5m", "{{reason}}")],
        unit="percentunit",
        limits=[0.1, 0.5],
    ),
    Graph(
        44,
        "Skipped estimates by reason",
        "Share of iterations that an estimate cannot use; single_gradient and smoothness_unknown come with k = 1.",
        "when any other is above 50% for a quarter of an hour (alert DbwEstimatorFallingBack): reports make no "
        "sense, and DiagnoseJob says why.",
        [job("dbw:skipped_estimates:ratio_rate5m", "{{reason}}")],
        unit="percentunit",
        limits=[0.5],
    ),
    Graph(
        45,
        "Refused calls",
        "Calls a second that controllers and parameter servers refused, by reason. Empty where there were none.",
        "when it goes on: a wrong token or name, a limit, two processes with the same job or worker id. The log "
        "has a line for each kind.",
        [Query(f"sum by (job, instance, reason) ({rate('dbw_refused_calls_total')})", "{{job}} {{reason}}")],
        unit="cps",
    ),
)

ESTIMATES = Row(
    5,
    "Estimates",
    Graph(
        50,
        "Gradient: squared norm and variance",
        "Estimates of ‖∇F‖² and of V(g), the variance of one worker's gradient. Their ratio tells how many "
        "gradients are worth waiting for. An estimate of 0 is not shown on this scale.",
        "when they end or stand still while training goes on: reports have no moments, or k stays 1.",
        [job("dbw_gradient_squared_norm", "‖∇F‖²"), job("dbw_gradient_variance", "V(g)")],
        unit="short",
        width=12,
        logarithmic=True,
    ),
    Graph(
        51,
        "Smoothness",
        "Estimate of L, how fast the gradient changes: the learning rate should be well below 2/L.",
        "when it jumps by orders of magnitude and stays there: training may be about to diverge.",
        [job("dbw_smoothness", "L")],
        unit="short",
        width=12,
    ),
)

CONTROLLER_PROCESS = Row(
    7,
    "Controller",
    Graph(
        70,
        "Unsaved iterations",
        "Iterations that a crash of the controller would make it forget; always 0 without --state-dir.",
        "when it stays near --save-iterations: the disk is slow, fails or hangs. Decisions go on.",
        [job("dbw_unsaved_iterations")],
        width=6,
        steps=True,
    ),
    Graph(
        71,
        "Snapshot failures",
        "Snapshots of jobs that could not be written in the last five minutes. Each is tried again.",
        "when there are two in half an hour (alert DbwSnapshotsFailing): the log has the reason.",
        [Query(f"increase(dbw_snapshot_failures_total{{{CONTROLLER}}}[5m])", "{{instance}}")],
        width=6,
    ),
    Graph(
        72,
        "Memory",
        "Resident memory. A job takes 0.4 MB with 16 workers, and up to 72 MB with 1000.",
        "when it nears the limit of the container or machine.",
        [Query(f"process_resident_memory_bytes{{{PROCESS}}}", "{{instance}}")],
        unit="bytes",
        width=6,
    ),
    Graph(
        73,
        "CPU",
        "Processors in use. One event loop decides for all jobs; snapshots and slow jobs have threads beside it.",
        "when it stays near 1: start another controller for some of the jobs.",
        [Query(rate(f"process_cpu_seconds_total{{{PROCESS}}}"), "{{instance}}")],
        width=6,
    ),
)
