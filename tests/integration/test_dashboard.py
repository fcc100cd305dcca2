"""What the dashboard, the rules and the guide to operations ask for is there, in a Prometheus that scrapes services."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dbw.v1.controller_pb2 import GetJobRequest
from dbw_worker import datasets
from tests.ports import lasting_address
from tests.prometheus import RULES, Prometheus, needs_prometheus, prometheus
from tests.servers import controller, parameter_server, wait_until, worker

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "docker/grafana/dashboard.py"
GUIDE = ROOT / "docs/operations.md"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docker/grafana/dashboards/dbw.json").read_text())
ROWS = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [target for panel in PANELS for target in panel["targets"]]
CHOICES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"}

JOB, WORKERS = "digits.1", 4  # a name that has to be escaped in regular expressions
# Half of the workers are late, and a low learning rate makes DBW go without them: k = 1 is among what it chooses.
TRAINING = ("--model", "mlp", "--optimizer", "sgd:lr=0.01", "--job", JOB, "--min-workers", str(WORKERS))
DELAY = "shifted-exp:0.01,0.005 * factors:1,1,20,20"

# What a training without the fault in question has no series of, and why. Their names must be exported all the same.
ONLY_AFTER_FAULTS = {
    'dbw:skipped_estimates:ratio_rate5m{reason!~"single_gradient|smoothness_unknown"}': (
        "reasons appear when they first occur, and all but these two are reports that make no sense"
    ),
}


class Watched(NamedTuple):
    """Services, as Prometheus sees them."""

    prometheus: Prometheus
    exported: set[str]  # names of all metrics
    instances: Mapping[str, list[str]]  # by scrape job


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A training whose controller was killed, is back and has refused a call, and a Prometheus that saw all of it."""
    folder = tmp_path_factory.mktemp("watched")
    datasets.load("digits", folder)
    kept = ("--worker-metrics", "--state-dir", str(folder / "state"))
    with ExitStack() as stack:
        same = ("--listen", lasting_address(), "--metrics-listen", lasting_address())
        first = stack.enter_context(controller(*kept, *same))
        files = ("--checkpoint-dir", str(folder / "checkpoints"), "--training-log", str(folder / "log.jsonl"))
        flags = (*TRAINING, *files, "--checkpoint-seconds", "1", "--controller", first.target)
        server = stack.enter_context(parameter_server(*flags))
        work = ("--data-dir", str(folder), "--delay", DELAY)
        workers = [stack.enter_context(worker(server.target, f"worker-{i}", *work)) for i in range(WORKERS)]
        for one in workers:
            one.metrics()  # waits until it has a port for them
        ports = {
            "dbw-controller": [first.metrics_port],
            "dbw-ps": [server.metrics_port],
            "dbw-worker": [one.metrics_port for one in workers],
        }
        watcher = stack.enter_context(prometheus(folder, ports))
        wait_until(lambda: watcher.query(f'dbw_iterations_total{{dbw_job="{JOB}"}} > 0'))
        first.kill()
        again = stack.enter_context(controller(*kept, *same))
        stub = stack.enter_context(again.stub())
        with pytest.raises(grpc.RpcError):  # a call that is refused, for those who count them
            stub.GetJob(GetJobRequest(job="nobody"))
        exported = {name for one in (again, server, *workers) for name in names_in(one.metrics())}
        instances = {name: [f"127.0.0.1:{port}" for port in found] for name, found in ports.items()}
        yield Watched(watcher, exported, instances)


def names_in(exposition: str) -> Iterator[str]:
    """The names of all metrics that a service exports, with and without what their series are called."""
    for family in text_string_to_metric_families(exposition):
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "summary": ["_sum", "_count"]}
        yield family.name
        yield from (family.name + suffix for suffix in suffixes.get(family.type, []))


def substituted(expression: str, **chosen: str) -> str:
    """An expression as Grafana would send it: a minute for rates, and everything where nothing was chosen."""
    values = {"__rate_interval": "1m"} | {name: variable["allValue"] for name, variable in CHOICES.items()}
    escaped = {name: re.sub(r"([.\\|()\[\]{}^$*+?])", r"\\\\\1", value) for name, value in chosen.items()}
    return re.sub(r"\$(\w+)", lambda match: (values | escaped)[match[1]], expression)


def selectors(expression: str) -> set[str]:
    """The series that an expression of ours names, with their labels."""
    clauses = r"\b(?:on|by|without|ignoring|group_left) \([^)]*\)"
    found = re.findall(r"\b(?:dbw[_:]|process_|up\b)[\w:]*(?:\{[^}]*\})?", re.sub(clauses, "", expression))
    return set(found)


def metric(selector: str) -> str:
    return selector.split("{")[0]


def require_results(watcher: Prometheus, expressions: Iterable[str]) -> None:
    """Wait until all expressions have had a value, be it for one series."""
    missing = set(expressions)

    def are_all_there() -> bool:
        found = {one for one in missing if not all(map(math.isnan, watcher.query(one)))}
        missing.difference_update(found)
        return not missing

    with suppress(AssertionError):  # of which the text would not say what is missing
        wait_until(are_all_there)
    assert not missing


def test_the_dashboard_is_what_its_program_writes() -> None:
    done = subprocess.run([sys.executable, PROGRAM, "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stale_dashboard_is_noticed_and_left_alone(tmp_path: Path) -> None:
    stale = tmp_path / "stale.json"
    stale.write_text("{}")
    done = subprocess.run([sys.executable, PROGRAM, "--check", "--file", stale], capture_output=True, text=True)
    assert done.returncode == 1
    assert "stale dashboard: stale.json" in done.stderr
    assert stale.read_text() == "{}"


def test_ids_are_unique() -> None:
    ids = [panel["id"] for panel in (*ROWS, *PANELS)]
    assert len(PANELS) > 20
    assert len(set(ids)) == len(ids)
    assert DASHBOARD["uid"] == "dbw"


def test_panels_are_inside_the_grid_and_do_not_overlap() -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in (*ROWS, *PANELS)]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for _, place in places)
    for (title, one), (other_title, other) in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, f"{title} and {other_title}"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_in_which_unit_and_when_to_worry(panel: dict[str, Any]) -> None:
    meaning, worry = panel["description"].split("\n\n**Worry:** ")
    assert min(len(meaning), len(worry)) > 10
    assert panel["title"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["type"] in {"timeseries", "stat", "bargauge", "table"}, "these come with Grafana"
    assert panel["targets"]
    letters = [target["refId"] for target in panel["targets"]]
    assert len(set(letters)) == len(letters)
    for target in panel["targets"]:
        assert target["expr"]
        assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_queries_use_variables_that_exist_and_all_variables_are_used() -> None:
    used = {name for target in TARGETS for name in re.findall(r"\$(\w+)", target["expr"])}
    assert used - {"__rate_interval"} == set(CHOICES)


@needs_prometheus
def test_every_query_of_the_dashboard_has_a_result(watched: Watched) -> None:
    queries = {substituted(target["expr"]) for target in TARGETS}
    require_results(watched.prometheus, queries - ONLY_AFTER_FAULTS.keys())


@needs_prometheus
def test_every_query_has_a_result_for_one_controller_one_job_and_one_worker(watched: Watched) -> None:
    chosen = {"controller": watched.instances["dbw-controller"][0], "job": JOB, "worker": "worker-0"}
    queries = {substituted(target["expr"], **chosen) for target in TARGETS}
    require_results(watched.prometheus, queries - ONLY_AFTER_FAULTS.keys())


@needs_prometheus
@pytest.mark.parametrize("name", CHOICES)
def test_nothing_is_shown_of_what_was_not_chosen(watched: Watched, name: str) -> None:
    of_it = [target["expr"] for target in TARGETS if f"${name}" in target["expr"]]
    assert of_it
    assert not [one for one in of_it if watched.prometheus.query(substituted(one, **{name: "another"}))]


@needs_prometheus
def test_the_labels_that_legends_and_tables_name_exist(watched: Watched) -> None:
    legends = [
        (substituted(target["expr"]), names)
        for target in TARGETS
        if (names := set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])))
    ]
    tables = [(panel["targets"][0]["expr"], columns(panel)) for panel in PANELS if panel["type"] == "table"]
    require_results(watched.prometheus, [expression for expression, _ in (*legends, *tables)])
    for expression, names in legends:
        assert all(names <= labels.keys() for labels, _ in watched.prometheus.series(expression)), expression
    for expression, names in tables:
        found = {name for labels, _ in watched.prometheus.series(expression) for name in labels}
        assert names <= found | {"Value", "dbw_job"}, expression  # an alert about a controller has no job


def columns(table: dict[str, Any]) -> set[str]:
    (only,) = table["transformations"]
    return set(only["options"]["include"]["names"])


@needs_prometheus
def test_the_variables_offer_what_is_there(watched: Watched) -> None:
    expected = {
        "controller": watched.instances["dbw-controller"],
        "job": [JOB],
        "worker": [f"worker-{i}" for i in range(WORKERS)],
    }
    for name, variable in CHOICES.items():
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert asked
        series, label = asked.groups()
        require_results(watched.prometheus, [series])
        assert sorted(watched.prometheus.api(f"label/{label}/values", **{"match[]": series})) == expected[name]


@needs_prometheus
def test_every_recording_rule_and_every_series_that_alerts_look_at_has_a_result(watched: Watched) -> None:
    rules = watched.prometheus.rules()
    records = {rule["name"] for rule in rules if rule["type"] == "recording"}
    series = {one for rule in rules for one in selectors(rule["query"])}
    assert {metric(one) for one in series} > {"up", "dbw_iterations_total", "process_start_time_seconds"}
    assert records
    require_results(watched.prometheus, (records | series) - ONLY_AFTER_FAULTS.keys())
    assert {rule["health"] for rule in rules} == {"ok"}


@needs_prometheus
def test_what_is_only_there_after_faults_is_asked_for_and_its_names_are_exported(watched: Watched) -> None:
    rules = watched.prometheus.rules()
    recorded = {rule["name"]: rule["query"] for rule in rules if rule["type"] == "recording"}
    asked = {substituted(target["expr"]) for target in TARGETS} | {
        s for rule in rules for s in selectors(rule["query"])
    }
    assert ONLY_AFTER_FAULTS.keys() <= asked
    for expression in ONLY_AFTER_FAULTS:
        names = {metric(one) for one in selectors(recorded.get(metric(expression), expression))}
        assert names
        assert names <= watched.exported


@needs_prometheus
def test_every_metric_that_the_guide_names_is_exported(watched: Watched) -> None:
    recorded = {rule["name"] for rule in watched.prometheus.rules()}
    named = set(re.findall(r"\b(?:dbw[_:]|process_)[a-z0-9_:]+[a-z0-9]", GUIDE.read_text())) - {"dbw_job"}
    assert named
    assert named <= watched.exported | recorded


def test_the_guide_has_a_section_for_every_alert_and_no_other() -> None:
    alerts = re.findall(r"^ *- alert: (\w+)$", RULES.read_text(), re.MULTILINE)
    assert alerts
    assert sorted(re.findall(r"^### (Dbw\w+)", GUIDE.read_text(), re.MULTILINE)) == sorted(alerts)


def test_every_alert_that_the_dashboard_and_the_guide_name_exists() -> None:
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    texts = [GUIDE.read_text(), *(panel["description"] for panel in PANELS)]
    assert {name for text in texts for name in re.findall(r"\bDbw[A-Z]\w+", text)} <= alerts
