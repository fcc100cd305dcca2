"""What parameter servers and workers tell, and which of the workers are late."""

from grafana import Bars, Graph, Query, Row
from queries import JOB, mean, rate, server, worker

ARRIVALS = "dbw_worker_arrival_seconds"
SLOWEST = f"rate({ARRIVALS}_sum{{{JOB}}}[5m]) / (rate({ARRIVALS}_count{{{JOB}}}[5m]) > 0)"
COMPUTED, UNUSED = rate("dbw_worker_gradients_total"), rate('dbw_worker_gradients_total{outcome!="used"}')

STRAGGLERS = Row(
    3,
    "Who is late",
    Graph(
        30,
        "Arrivals by worker",
        "Mean time from the publication of parameters to each worker's gradient for them, late ones included. Only "
        "from a controller with --worker-metrics; the number is the one that the parameter server gave the worker.",
        "when one is far above the others, or all rise together: the network, or the parameter server.",
        [Query(mean(ARRIVALS, f"{{{JOB}}}"), "{{dbw_job}} worker {{worker}}")],
        unit="s",
    ),
    Bars(
        31,
        "Ten slowest workers",
        "The largest of these times over the last five minutes.",
        "when the same workers stay at the top with a distance to the rest: look at their machines.",
        [Query(f"topk(10, {SLOWEST})", "{{dbw_job}} worker {{worker}}", instant=True)],
        unit="s",
    ),
    Graph(
        32,
        "Compute time by worker",
        "How long workers take for a gradient by their own clocks, injected delays included, of whichever job; and how "
        "long they have been computing the present one.",
        "when one is far above the others: a slow or shared machine. If its arrivals are late and this is not, it "
        "is the way to the parameter server. When the present one grows, the computation hangs.",
        [worker(mean("dbw_worker_compute_seconds")), worker("dbw_worker_computing_seconds", "now")],
        unit="s",
    ),
    Graph(
        33,
        "Gradients that came to nothing, by worker",
        "Share of each worker's gradients that were not used: late, interrupted, lost or refused.",
        "when it is near 100% for a worker: it is paid for in vain. For all of them: k is small, see above.",
        [worker(f"sum by (job, instance) ({UNUSED}) / (sum by (job, instance) ({COMPUTED}) > 0)")],
        unit="percentunit",
    ),
    Graph(
        34,
        "Workers that wait",
        "Share of its time that a worker waits for parameters, and share that injected delays take (--delay).",
        "when all wait for most of their time: gradients are so cheap that the parameter server, the network or "
        "one straggler sets the pace.",
        [
            worker(rate("dbw_worker_wait_seconds_total"), "waits"),
            worker(rate("dbw_worker_delay_seconds_total"), "is delayed"),
        ],
        unit="percentunit",
    ),
)

PARAMETER_SERVER = Row(
    6,
    "Parameter servers",
    Graph(
        60,
        "Phases of an iteration",
        "Mean time in an iteration: wait for gradients, aggregate what is left to add, update, and publish "
        "(serialise).",
        "when anything but wait has a large share: the parameter server holds up its workers.",
        [server(mean("dbw_ps_iteration_phase_seconds"), "{{phase}}")],
        unit="s",
        stacked=True,
    ),
    Graph(
        61,
        "Network",
        "Bytes of gradients that come in and of parameters that go out.",
        "when it nears what the network can do: fewer bytes with --gradient-type bfloat16.",
        [
            server(rate("dbw_ps_received_bytes_total"), "gradients in"),
            server(rate("dbw_ps_sent_bytes_total"), "parameters out"),
        ],
        unit="Bps",
    ),
    Graph(
        62,
        "Checkpoints",
        "Age of the newest checkpoint, which is what a crash would cost, and how long it took to write. Empty "
        "without --checkpoint-dir, and before the first one.",
        "when the age grows beyond --checkpoint-seconds: the disk is full, slow or gone, or training stands still.",
        [server("dbw_ps_checkpoint_age_seconds", "age"), server("dbw_ps_checkpoint_write_seconds", "time to write")],
        unit="s",
    ),
    Graph(
        63,
        "Live workers and k",
        "Workers that are alive, and the gradients that the iteration under way waits for.",
        "when workers disappear, are stalled because their computation hangs, or are missing: training waits for them.",
        [
            server("dbw_ps_live_workers", "live workers"),
            server("dbw_ps_k", "k"),
            server("dbw_ps_stalled_workers", "stalled workers"),
            server("dbw_ps_missing_workers", "missing workers"),
        ],
        steps=True,
    ),
    Graph(
        64,
        "Gradients by outcome",
        "Gradients a second by what became of them; notified and interrupted ones were not sent at all.",
        "when there are not_finite (training diverges), outlier, malformed, wrong_version, left_out or lost ones.",
        [server(rate("dbw_ps_gradients_total"), "{{outcome}}")],
        unit="cps",
        stacked=True,
    ),
    Graph(
        65,
        "Iterations by what ended them",
        "k_reached is the rule; no_more_expected: workers died or were rejected; max_wait, deadline: time was up.",
        "when any but k_reached is frequent.",
        [server(rate("dbw_ps_iterations_total"), "{{cause}}")],
        unit="cps",
        stacked=True,
    ),
    Graph(
        66,
        "On fallback",
        "1 while k is not the controller's decision, because that does not answer or refuses.",
        "when it stays 1: the parameter server's log says why, a wrong token or address as well as an outage.",
        [server("dbw_ps_fallback")],
        steps=True,
    ),
    Graph(
        67,
        "Faults since the server started",
        "Checkpoints that could not be written, and workers that timed out.",
        "when either grows.",
        [
            server("dbw_ps_checkpoint_failures", "checkpoint failures"),
            server("dbw_ps_given_up_workers_total", "workers that timed out"),
        ],
        steps=True,
    ),
    Graph(
        68,
        "Loss by iteration",
        "Mean loss of the last iteration by the parameter server itself, also where it has no controller.",
        "when it grows for long, or ends.",
        [server("dbw_ps_loss")],
        unit="short",
    ),
)
