"""What values do to manifests."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dbw_controller.server.quotas import DEFAULT_LIMITS, MIB
from tests.charts.chart import (
    NAMESPACE,
    ROOT,
    Manifest,
    container,
    environment,
    helm,
    mounted,
    needs_helm,
    of_kind,
    pod,
    render,
)
from tests.charts.options import CHART
from tests.upgrade.versions import checked_out
from tests.version import VERSION

pytestmark = needs_helm
TLS = {"--tls-ca=/etc/dbw/tls/ca.crt"}
MUTUAL = {*TLS, "--tls-cert=/etc/dbw/tls/tls.crt", "--tls-key=/etc/dbw/tls/tls.key"}


@pytest.mark.parametrize(
    ("copy", "original"),
    [("dbw-rules.yml", "docker/prometheus/dbw-rules.yml"), ("dbw.json", "docker/grafana/dashboards/dbw.json")],
)
def test_the_chart_has_copies_of_what_is_outside_of_it(copy: str, original: str) -> None:
    same = (CHART / "files" / copy).read_bytes() == (ROOT / original).read_bytes()
    assert same, f"cp {original} helm/dbw/files/"


def test_the_chart_is_of_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'\nversion = "{chart["appVersion"]}"\n' in (ROOT / "pyproject.toml").read_text()


# Who is there, and how they find each other


def test_by_default_there_is_a_controller_and_a_training_named_after_the_release() -> None:
    manifests = render()
    assert list(of_kind("StatefulSet", manifests)) == ["try-dbw-controller"]
    assert of_kind("Job", manifests).keys() == {"try-dbw-ps", "try-dbw-worker"}
    assert environment("try-dbw-ps", manifests)["DBW_PS_JOB"] == "try"


def test_a_training_whose_checkpoints_go_with_its_pod_may_begin_again() -> None:
    assert "DBW_PS_FRESH" not in environment("try-dbw-ps", render())
    manifests = render("default", "ps.persistence.enabled=false")
    assert environment("try-dbw-ps", manifests)["DBW_PS_FRESH"] == "true"


def test_workers_find_the_parameter_server_and_that_the_controller() -> None:
    manifests = render()
    services = of_kind("Service", manifests)
    for whose, name in [("try-dbw-ps", "DBW_PS_CONTROLLER"), ("try-dbw-worker", "DBW_WORKER_SERVER")]:
        host, _, port = environment(whose, manifests)[name].partition(":")
        assert int(port) in [port["port"] for port in services[host]["spec"]["ports"]]


def test_parameter_server_and_workers_have_the_same_model() -> None:
    manifests = render("gpu")
    assert environment("try-dbw-ps", manifests)["DBW_PS_MODEL"] == "resnet18"
    assert environment("try-dbw-worker", manifests)["DBW_WORKER_MODEL"] == "resnet18"


def test_a_controller_can_be_alone() -> None:
    manifests = render("controller-only")
    assert list(of_kind("StatefulSet", manifests)) == ["try-dbw-controller"]
    assert not of_kind("Job", manifests)
    assert {m["metadata"]["labels"]["app.kubernetes.io/component"] for m in manifests} == {"all", "controller", "test"}
    options = environment("try-dbw-controller", manifests)
    assert options["DBW_CONTROLLER_MAX_JOBS"] == "50"
    assert options["DBW_CONTROLLER_WORKER_METRICS"] == "true"


def test_a_training_can_use_a_controller_that_is_elsewhere() -> None:
    manifests = render("elsewhere")
    assert not of_kind("StatefulSet", manifests)
    assert not of_kind("Pod", manifests)
    assert environment("speech-ps", manifests)["DBW_PS_CONTROLLER"] == "dbw-controller.platform:50051"


def test_a_training_without_a_controller_decides_itself() -> None:
    manifests = render("default", "controller.enabled=false")
    assert not any("CONTROLLER" in name for name in environment("try-dbw-ps", manifests))


def test_several_trainings_share_a_controller() -> None:
    manifests = render("trainings")
    assert of_kind("Job", manifests).keys() == {
        f"try-dbw-{training}-{component}" for training in ("vision", "digits") for component in ("ps", "worker")
    }
    for training in ("vision", "digits"):
        server, worker = (environment(f"try-dbw-{training}-{component}", manifests) for component in ("ps", "worker"))
        assert server["DBW_PS_CONTROLLER"] == "try-dbw-controller:50051"
        assert server["DBW_PS_JOB"] == training
        assert worker["DBW_WORKER_SERVER"] == f"try-dbw-{training}-ps:50052"


def test_a_training_says_otherwise_than_all_also_with_nothing() -> None:
    manifests = render("trainings")
    vision, digits = (environment(f"try-dbw-{training}-ps", manifests) for training in ("vision", "digits"))
    assert vision["DBW_PS_ITERATIONS"] == "10000"
    assert "DBW_PS_ITERATIONS" not in digits  # null
    assert digits["DBW_PS_REFLECTION"] == "false"
    assert mounted("try-dbw-digits-ps", manifests)["/var/lib/dbw"] == {"name": "state", "emptyDir": {}}
    assert "nvidia.com/gpu" not in container("try-dbw-digits-worker", manifests)["resources"]["limits"]  # 0
    assert of_kind("Job", manifests)["try-dbw-digits-worker"]["spec"]["completions"] == 2
    assert of_kind("Job", manifests)["try-dbw-vision-worker"]["spec"]["completions"] == 16
    assert container("try-dbw-vision-ps", manifests)["image"] == "vision-ps:7"
    assert container("try-dbw-digits-ps", manifests)["image"] == f"dbw-ps:{VERSION}"


def test_numbers_arrive_as_they_were_written() -> None:
    options = environment("try-dbw-ps", render("gpu"))
    assert options["DBW_PS_ITERATIONS"] == "2000000"
    assert float(options["DBW_PS_CLIP_NORM"]) == 1e-7


# Jobs that end, and can be changed


def test_jobs_are_complete_when_training_is_over_and_survive_what_happens_to_nodes() -> None:
    jobs = of_kind("Job", render())
    for job in jobs.values():
        spec = job["spec"]
        assert spec["completionMode"] == "Indexed"
        assert spec["successPolicy"] == {"rules": [{"succeededCount": 1}]}
        assert spec["podFailurePolicy"]["rules"][0]["onPodConditions"] == [
            {"type": "DisruptionTarget", "status": "True"}
        ]
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert jobs["try-dbw-ps"]["spec"]["completions"] == 1
    assert jobs["try-dbw-worker"]["spec"]["completions"] == jobs["try-dbw-worker"]["spec"]["parallelism"] == 4


def test_the_jobs_of_a_training_have_other_names_if_its_pods_differ_and_only_then() -> None:
    def runs(*settings: str) -> dict[str, str]:
        jobs = of_kind("Job", render("trainings", *settings))
        return {name.removeprefix("try-dbw-"): job["metadata"]["name"] for name, job in jobs.items()}

    before = runs()
    assert runs("controller.options.max_jobs=7", "trainings.vision.worker.replicas=9") == before
    for setting in ("ps.options.iterations=7", "worker.options.seed=7", "worker.retries=7"):
        after = runs(f"trainings.vision.{setting}")
        assert {name for name in after if after[name] != before[name]} == {"vision-ps", "vision-worker"}


@pytest.mark.parametrize(
    ("values", "label"),
    [("default", "batch.kubernetes.io/job-completion-index"), ("endless", "apps.kubernetes.io/pod-index")],
)
def test_a_worker_keeps_its_id_when_its_pod_is_replaced(values: str, label: str) -> None:
    variables = environment("try-dbw-worker", render(values))
    assert variables["DBW_WORKER_ID"] == "worker-$(WORKER_INDEX)"
    assert variables["WORKER_INDEX"] == {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}
    assert list(variables).index("WORKER_INDEX") < list(variables).index("DBW_WORKER_ID")  # or it is not replaced


def test_a_training_without_an_end_may_be_of_stateful_sets() -> None:
    manifests = render("endless")
    sets, services = of_kind("StatefulSet", manifests), of_kind("Service", manifests)
    assert sets["try-dbw-ps"]["spec"]["replicas"] == 1
    assert sets["try-dbw-worker"]["spec"]["replicas"] == 3
    for stateful in sets.values():
        assert services[stateful["spec"]["serviceName"]]["spec"]["clusterIP"] == "None"
    assert "command" not in container("try-dbw-worker", manifests)


# Where pods run, and with what


def test_workers_have_gpus_on_nodes_that_are_asked_for() -> None:
    manifests = render("gpu")
    spec, worker = pod("try-dbw-worker", manifests), container("try-dbw-worker", manifests)
    assert worker["resources"]["limits"] == {"memory": "32Gi", "nvidia.com/gpu": 1}
    assert environment("try-dbw-worker", manifests)["DBW_WORKER_DEVICE"] == "cuda"
    assert spec["nodeSelector"] == {"accelerator": "a100"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert spec["affinity"]["nodeAffinity"]
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["priorityClassName"] == "training"
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "worker"
    (download,) = spec["initContainers"]
    assert "nvidia.com/gpu" not in download["resources"]["limits"]


def test_without_gpus_workers_take_none() -> None:
    manifests = render()
    assert container("try-dbw-worker", manifests)["resources"]["limits"].keys() == {"memory"}
    assert "DBW_WORKER_DEVICE" not in environment("try-dbw-worker", manifests)


def test_images_come_from_where_they_are_said_to_be() -> None:
    manifests = render("gpu")
    assert container("try-dbw-ps", manifests)["image"] == f"registry.example.org/team/dbw-ps:{VERSION}"
    assert container("try-dbw-worker", manifests)["image"] == "registry.example.org/team/dbw-worker:cuda"
    assert pod("try-dbw-worker", manifests)["imagePullSecrets"] == [{"name": "registry"}]


def test_data_sets_are_those_of_the_image_a_claim_or_fetched() -> None:
    assert "/var/lib/dbw/data" not in mounted("try-dbw-worker", render())
    manifests = render("gpu")
    assert mounted("try-dbw-worker", manifests)["/var/lib/dbw/data"]["persistentVolumeClaim"] == {
        "claimName": "datasets"
    }
    (download,) = pod("try-dbw-worker", manifests)["initContainers"]
    assert download["command"] == ["dbw", "data", "get", "--dir=/var/lib/dbw/data", "cifar10"]


@pytest.mark.parametrize("name", ["try-dbw-controller", "try-dbw-ps"])
def test_state_is_in_a_claim_that_stays(name: str) -> None:
    manifests = render()
    claim = mounted(name, manifests)["/var/lib/dbw"]["persistentVolumeClaim"]["claimName"]
    annotations = of_kind("PersistentVolumeClaim", manifests)[claim]["metadata"]["annotations"]
    assert annotations == {"helm.sh/resource-policy": "keep"}
    assert pod(name, manifests)["securityContext"]["fsGroup"] == 10001


def test_a_claim_that_exists_is_used() -> None:
    manifests = render("trainings")
    assert mounted("try-dbw-vision-ps", manifests)["/var/lib/dbw"]["persistentVolumeClaim"] == {
        "claimName": "vision-checkpoints"
    }
    assert of_kind("PersistentVolumeClaim", manifests).keys() == {"try-dbw-controller"}


def test_disruption_budgets_are_in_pods_which_is_all_that_jobs_allow() -> None:
    budgets = of_kind("PodDisruptionBudget", render("gpu"))
    assert {name: budget["spec"]["minAvailable"] for name, budget in budgets.items()} == {
        "try-dbw-ps": 1,
        "try-dbw-worker": 6,
    }


def test_the_cluster_may_choose_who_pods_run_as() -> None:
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & pod("speech-ps", render("elsewhere"))["securityContext"].keys()


# Security


def test_without_tls_kubernetes_asks_for_the_health_itself() -> None:
    manifests = render()
    for name, port in [("try-dbw-controller", 50051), ("try-dbw-ps", 50052)]:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container(name, manifests)[probe]["grpc"] == {"port": port}
    assert environment("try-dbw-controller", manifests)["DBW_CONTROLLER_INSECURE"] == "true"
    assert environment("try-dbw-ps", manifests)["DBW_PS_INSECURE"] == "true"


@pytest.mark.parametrize("values", ["default", "mutual-tls"])
def test_workers_are_asked_for_their_health(values: str) -> None:
    name = "try-dbw-worker" if values == "default" else "try-dbw-vision-worker"
    assert container(name, render(values))["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}


@pytest.mark.parametrize(("values", "flags"), [("tls", TLS), ("mutual-tls", MUTUAL)])
def test_with_tls_a_command_asks_for_the_health(values: str, flags: set[str]) -> None:
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        command = container("try-dbw-controller", render(values))[probe]["exec"]["command"]
        assert command[:3] == ["dbw", "health", "localhost:50051"]
        assert set(command[3:]) == flags


def test_tls_of_a_secret_is_for_all() -> None:
    manifests = render("tls")
    server, worker = environment("try-dbw-ps", manifests), environment("try-dbw-worker", manifests)
    assert server["DBW_PS_TLS_CERT"] == "/etc/dbw/tls/tls.crt"
    assert server["DBW_PS_TLS_KEY"] == "/etc/dbw/tls/tls.key"
    assert server["DBW_PS_CONTROLLER_TLS_CA"] == worker["DBW_WORKER_TLS_CA"] == "/etc/dbw/tls/ca.crt"
    assert not {"DBW_PS_INSECURE", "DBW_PS_TLS_CLIENT_CA", "DBW_PS_CONTROLLER_TLS_CERT"} & server.keys()
    assert "DBW_WORKER_TLS_CERT" not in worker
    for name in ("try-dbw-controller", "try-dbw-ps", "try-dbw-worker", "try-dbw-test"):
        assert mounted(name, manifests)["/etc/dbw/tls"]["secret"]["secretName"] == "dbw-certificates"
    assert not of_kind("Certificate", manifests)


def files(volume: Manifest) -> set[str]:
    """The files of a secret that a pod gets."""
    return {item["key"] for item in volume["secret"]["items"]}


def test_a_client_without_a_certificate_does_not_get_the_servers_key() -> None:
    manifests = render("tls")
    assert files(mounted("try-dbw-worker", manifests)["/etc/dbw/tls"]) == {"ca.crt"}
    assert files(mounted("try-dbw-test", manifests)["/etc/dbw/tls"]) == {"ca.crt"}
    assert files(mounted("try-dbw-ps", manifests)["/etc/dbw/tls"]) == {"ca.crt", "tls.crt", "tls.key"}


def test_with_mutual_tls_servers_ask_for_certificates_and_clients_have_them() -> None:
    manifests = render("mutual-tls")
    assert environment("try-dbw-controller", manifests)["DBW_CONTROLLER_TLS_CLIENT_CA"] == "/etc/dbw/tls/ca.crt"
    server = environment("try-dbw-vision-ps", manifests)
    assert server["DBW_PS_TLS_CLIENT_CA"] == "/etc/dbw/tls/ca.crt"
    assert server["DBW_PS_CONTROLLER_TLS_CERT"] == "/etc/dbw/tls/tls.crt"
    assert server["DBW_PS_CONTROLLER_TLS_KEY"] == "/etc/dbw/tls/tls.key"
    worker = environment("try-dbw-vision-worker", manifests)
    assert worker["DBW_WORKER_TLS_CERT"] == "/etc/dbw/tls/tls.crt"
    assert worker["DBW_WORKER_TLS_KEY"] == "/etc/dbw/tls/tls.key"


def test_cert_manager_makes_a_certificate_for_each_component() -> None:
    manifests = render("mutual-tls")
    certificates = of_kind("Certificate", manifests)
    assert certificates.keys() == {
        "try-dbw-controller",
        *(f"try-dbw-{training}-{part}" for training in ("vision", "speech") for part in ("ps", "worker")),
    }
    for name, certificate in certificates.items():
        spec = certificate["spec"]
        assert spec["secretName"] == mounted(name, manifests)["/etc/dbw/tls"]["secret"]["secretName"]
        assert {"server auth", "client auth"} <= set(spec["usages"])
        assert spec["issuerRef"] == {"name": "internal", "kind": "ClusterIssuer", "group": "cert-manager.io"}
        assert spec["dnsNames"][0] == f"{name}.{NAMESPACE}"
        assert {name, f"{name}.{NAMESPACE}.svc.cluster.local", "localhost"} <= set(spec["dnsNames"])


def test_each_pod_gets_only_the_tokens_that_it_needs() -> None:
    manifests = render("tokens")
    got = {
        name: files(mounted(f"try-dbw-{name}", manifests)["/etc/dbw/tokens"])
        for name in ("controller", "vision-ps", "vision-worker", "test")
    }
    assert got == {
        "controller": {"controller-identities", "controller-token"},
        "vision-ps": {"ps-identities", "controller-token"},
        "vision-worker": {"ps-token"},
        "test": {"controller-token"},
    }
    server = environment("try-dbw-vision-ps", manifests)
    assert server["DBW_PS_TOKEN_FILE"] == "/etc/dbw/tokens/ps-identities"  # noqa: S105
    assert server["DBW_PS_CONTROLLER_TOKEN_FILE"] == "/etc/dbw/tokens/controller-token"  # noqa: S105


def test_a_training_may_have_tokens_of_its_own() -> None:
    secrets = {
        training: mounted(f"try-dbw-{training}-ps", render("tokens"))["/etc/dbw/tokens"]["secret"]["secretName"]
        for training in ("vision", "speech")
    }
    assert secrets == {"vision": "dbw-tokens", "speech": "speech-tokens"}


def admitted(policy: Manifest) -> dict[str, list[Manifest]]:
    """Who may come in, by port."""
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    return {port["port"]: rule["from"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}


def test_network_policies_let_in_who_has_to_and_nobody_else() -> None:
    policies = of_kind("NetworkPolicy", render("trainings"))
    assert admitted(policies["try-dbw-vision-worker"]).keys() == {"metrics"}
    (workers,) = admitted(policies["try-dbw-vision-ps"])["grpc"]
    assert workers["podSelector"]["matchLabels"] == {
        "app.kubernetes.io/name": "dbw",
        "app.kubernetes.io/instance": "try",
        "app.kubernetes.io/component": "worker",
        "dbw-training": "vision",
    }
    release, namespace = admitted(policies["try-dbw-controller"])["grpc"]
    assert release["podSelector"]["matchLabels"].keys() == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}
    assert namespace == {"podSelector": {}}


def test_network_policies_can_be_stricter() -> None:
    monitoring = admitted(of_kind("NetworkPolicy", render("monitoring"))["try-dbw-ps"])["metrics"]
    assert monitoring == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    nobody = of_kind("NetworkPolicy", render("default", "networkPolicy.metricsFrom=null"))["try-dbw-worker"]
    assert nobody["spec"]["ingress"] in (None, [])
    assert not of_kind("NetworkPolicy", render("elsewhere"))


def test_by_default_nobody_outside_of_the_namespace_gets_in() -> None:
    for policy in of_kind("NetworkPolicy", render()).values():
        peers = [peer for port in admitted(policy).values() for peer in port]
        assert peers
        assert all(peer.keys() == {"podSelector"} for peer in peers)


# Monitoring


def test_scrape_jobs_have_the_names_that_rules_and_dashboard_know() -> None:
    manifests = render("monitoring")
    monitors = {**of_kind("ServiceMonitor", manifests), **of_kind("PodMonitor", manifests)}
    names = {}
    for name, monitor in monitors.items():
        assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"
        (endpoint,) = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == "metrics"
        assert endpoint["interval"] == "30s"
        (names[name],) = endpoint["relabelings"]
    assert names == {
        f"try-dbw-{part}": {"targetLabel": "job", "replacement": f"dbw-{part}"}
        for part in ("controller", "ps", "worker")
    }


def test_nothing_is_scraped_twice() -> None:
    manifests = render("monitoring")
    for monitor in of_kind("ServiceMonitor", manifests).values():
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        services = [s for s in of_kind("Service", manifests).values() if selector <= s["metadata"]["labels"].items()]
        with_metrics = [s for s in services if "metrics" in [port["name"] for port in s["spec"].get("ports", [])]]
        assert len(with_metrics) == 1


def test_rules_are_those_of_the_file() -> None:
    (rule,) = of_kind("PrometheusRule", render("monitoring")).values()
    assert rule["spec"] == yaml.safe_load((ROOT / "docker/prometheus/dbw-rules.yml").read_text())


def test_grafana_finds_the_dashboard_of_the_file() -> None:
    (dashboard,) = of_kind("ConfigMap", render("monitoring")).values()
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["dbw.json"]) == json.loads((CHART / "files/dbw.json").read_text())


def test_without_an_operator_nothing_of_its_is_installed() -> None:
    assert not {m["kind"] for m in render()} & {"ServiceMonitor", "PodMonitor", "PrometheusRule", "Certificate"}


@pytest.fixture
def chart_with_notes(tmp_path: Path) -> Path:
    """A copy of the chart that renders its notes as a manifest: Helm shows them only once something is installed."""
    copy = Path(shutil.copytree(CHART, tmp_path / "dbw"))
    shutil.copy(CHART / "templates/NOTES.txt", copy / "notes")
    (copy / "templates/notes.yaml").write_text('text: {{ tpl (.Files.Get "notes") . | toJson }}')
    return copy


@pytest.fixture
def notes(chart_with_notes: Path) -> Callable[..., str]:
    """What Helm says after it has installed the chart with these settings, in one line."""

    def show(*settings: str) -> str:
        further = [argument for setting in settings for argument in ("--set", setting)]
        only = ("--namespace", NAMESPACE, "--show-only", "templates/notes.yaml")
        shown = helm("template", "try", str(chart_with_notes), *only, *further)
        assert shown.returncode == 0, shown.stderr
        return " ".join(yaml.safe_load(shown.stdout)["text"].split())

    return show


def test_values_of_the_last_release_can_be_reused(
    notes: Callable[..., str], chart_with_notes: Path, tmp_path: Path
) -> None:
    release = checked_out(tmp_path / "release").folder
    assert release is not None
    # What `helm upgrade --reuse-values` does: the defaults of the new chart are not there.
    shutil.copy(release / "helm/dbw/values.yaml", chart_with_notes / "values.yaml")
    assert "The controller is try-dbw-controller:50051" in notes()
    whole = helm("template", "try", str(chart_with_notes), "--namespace", NAMESPACE)
    assert whole.returncode == 0, whole.stderr
    refused = helm("template", "try", str(chart_with_notes), "--set", "networkPolicy.enabled=false")
    assert "set insecure.otherNamespaces=true" in refused.stderr


def test_the_notes_say_what_protects_and_what_does_not(notes: Callable[..., str]) -> None:
    assert "protect nothing unless the network plugin (CNI) of the cluster enforces them" in notes()
    everybody = notes("networkPolicy.enabled=false", "insecure.otherNamespaces=true")
    assert "every pod of the cluster can call" in everybody
    assert "Other namespaces are served without TLS and proof of identity" in everybody
    named = "networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus"
    assert 'networkPolicy.metricsFrom: [{"podSelector":{}}]' in notes()
    assert 'networkPolicy.metricsFrom: [{"podSelector":{"matchLabels"' in notes(named)
    assert "networkPolicy.metricsFrom" not in everybody


MEMORY, QUOTA = "controller.resources.limits.memory", "controller.options.max_total_bytes"
ENOUGH = DEFAULT_LIMITS.total_bytes // MIB + 512


@pytest.mark.parametrize("settings", [[f"{MEMORY}={ENOUGH - 1}Mi"], [f"{MEMORY}=1Gi", f"{QUOTA}={512 * MIB + 1}"]])
def test_the_notes_say_if_jobs_may_take_more_memory_than_the_controller_has(
    notes: Callable[..., str], settings: list[str]
) -> None:
    assert QUOTA in notes(*settings)
    assert QUOTA not in notes("controller.enabled=false", *settings)


@pytest.mark.parametrize(
    "settings",
    [
        [],
        [f"{MEMORY}={ENOUGH}Mi"],
        [f"{MEMORY}=1Gi", f"{QUOTA}={512 * MIB}"],
        [f"{MEMORY}=1G"],  # only Mi and Gi are looked at
        [f"{MEMORY}=null"],
        ["controller.resources.limits=null"],
    ],
)
def test_the_notes_say_nothing_of_memory_that_suffices_or_is_not_known(
    notes: Callable[..., str], settings: list[str]
) -> None:
    assert QUOTA not in notes(*settings)


def test_the_notes_say_what_to_do_next(notes: Callable[..., str]) -> None:
    text = notes()
    assert "The controller is try-dbw-controller:50051" in text
    assert "kubectl --namespace somewhere exec try-dbw-controller-0 -- dbw jobs" in text
    assert "Training try: model mlp, 4 workers" in text
    assert "It never ends" in text
    assert "not encrypted" in text
