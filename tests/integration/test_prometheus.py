"""What Prometheus makes of the controller: rules tested by its own tools, and a real server that scrapes a real one."""

import re
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dbw.v1.controller_pb2 import CreateJobRequest, DeleteJobRequest, EndIterationRequest, ReportRequest
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Arrivals, GradientMoments, IterationSummary, Membership
from tests.prometheus import FOLDER, RULES, needs_prometheus, needs_promtool, prometheus
from tests.servers import controller, parameter_server, wait_until
from tests.workers import TINY

JOB = "resnet-7"
SECONDS = (0.1, 0.11, 0.12, 0.5)  # when gradients arrive: the last worker is a straggler


def training(stub: ControllerServiceStub) -> Iterator[int]:
    """Train for ever, an iteration whenever the next one is asked for; gives k."""
    created = stub.CreateJob(CreateJobRequest(job=JOB, iteration=0, membership=Membership(live_workers=len(SECONDS))))
    session, decision = created.session, created.job.decision
    while True:
        t, k = decision.iteration, decision.k
        summary = IterationSummary(
            iteration=t,
            k=k,
            duration_seconds=SECONDS[k - 1],
            loss=1 / (t + 1),
            learning_rate=0.1,
            moments=GradientMoments(mean_squared_norm=1.0, sum_squared_norms=1.5 * k),
        )
        arrivals = [Arrivals(iteration=t, seconds=SECONDS[:k], workers=range(k))]
        ended = EndIterationRequest(job=JOB, session=session, arrivals=arrivals, summary=summary)
        decision = stub.EndIteration(ended).decision
        late = Arrivals(iteration=t, preceding=k, seconds=SECONDS[k:], workers=range(k, len(SECONDS)))
        stub.Report(ReportRequest(job=JOB, session=session, arrivals=[late]))
        yield k


@pytest.fixture(scope="module")
def exposition() -> str:
    """What a controller with all its metrics exports after a short training."""
    with controller("--worker-metrics") as server, server.stub() as stub:
        for _ in islice(training(stub), 10):
            pass
        return server.metrics()


def promtool(*arguments: str, **options: Any) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, **options)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@needs_promtool
def test_the_rules_are_valid() -> None:
    promtool("check", "rules", str(RULES))


@needs_promtool
def test_every_alert_fires_when_it_should_and_only_then() -> None:
    promtool("test", "rules", str(FOLDER / "dbw-rules-test.yml"))


@needs_promtool
def test_the_metrics_follow_the_naming_conventions(exposition: str) -> None:
    promtool("check", "metrics", input=exposition)


def test_every_rule_has_a_test() -> None:
    tested = (FOLDER / "dbw-rules-test.yml").read_text()
    names = re.findall(r"(?:alert|record): (\S+)", RULES.read_text())
    assert names
    assert not [name for name in names if name not in tested]


def test_every_metric_that_the_rules_name_is_exported(exposition: str, tmp_path: Path) -> None:
    with parameter_server(*TINY, "--checkpoint-dir", str(tmp_path)) as server:
        families = list(text_string_to_metric_families(exposition + server.metrics()))
    exported = {family.name for family in families} | {sample.name for family in families for sample in family.samples}
    named = set(re.findall(r"\b(?:dbw|process)_\w+", RULES.read_text())) - {"dbw_job"}
    assert {"dbw_gradients_total", "process_start_time_seconds"} <= named
    assert named <= exported


def test_every_reason_and_outcome_that_the_rules_name_is_exported(exposition: str) -> None:
    values = re.findall(r'\b(reason|outcome)\W+"([\w|]+)"', RULES.read_text())
    named = {(label, value) for label, alternatives in values for value in alternatives.split("|")}
    assert {("outcome", "late"), ("reason", "best_rate")} <= named
    assert not [pair for pair in named if '{}="{}"'.format(*pair) not in exposition]


@needs_prometheus
def test_prometheus_scrapes_a_training_and_forgets_a_job_that_is_deleted(tmp_path: Path) -> None:
    of_job = f'{{dbw_job="{JOB}"}}'
    records = re.findall(r"record: (\S+)", RULES.read_text())
    with (
        controller() as server,
        server.stub() as stub,
        prometheus(tmp_path, {"dbw-controller": [server.metrics_port]}) as watcher,
    ):
        iterations = training(stub)
        wait_until(lambda: next(iterations) and all(watcher.query(name + of_job) for name in records))
        watcher.wait_for('up{job="dbw-controller"}', 1.0)
        watcher.wait_for("dbw_jobs", 1.0)
        watcher.wait_for(f"dbw_live_workers{of_job}", 4.0)
        watcher.wait_for(f"dbw_selected_k{of_job}", 1.0)
        for histogram in ("dbw_iteration_duration_seconds", "dbw_decision_duration_seconds"):
            all_buckets = f'{histogram}_bucket{{le="+Inf"}}'
            watcher.wait_for(f"{all_buckets} - ignoring (le) ({histogram}_count{of_job} > 0)", 0.0)

        # k = 1 of 4, and three gradients late: in half an hour the cluster would be said to straggle.
        wait_until(lambda: next(iterations) and watcher.query('ALERTS{alertname="DbwStragglingCluster"}'))
        assert not watcher.query('ALERTS{alertstate="firing"}')
        wait_until(lambda: {rule["health"] for rule in watcher.rules()} == {"ok"})
        assert set(records) < {rule["name"] for rule in watcher.rules()}

        stub.DeleteJob(DeleteJobRequest(job=JOB))
        wait_until(lambda: not watcher.query(f'{{__name__=~"dbw_.*",dbw_job="{JOB}"}}'))
        watcher.wait_for("dbw_jobs", 0.0)


@needs_prometheus
def test_a_restart_of_the_controller_raises_an_alert(tmp_path: Path) -> None:
    firing = 'ALERTS{alertname="DbwControllerRestarted",alertstate="firing"}'
    with controller() as first, prometheus(tmp_path, {"dbw-controller": [first.metrics_port]}) as watcher:
        wait_until(lambda: watcher.query("process_start_time_seconds"))
        assert not watcher.query(firing)
        first.kill()
        with controller("--metrics-listen", f"127.0.0.1:{first.metrics_port}"):
            wait_until(lambda: watcher.query(firing))
