"""What must hold of every manifest, whatever the values."""

import re

import pytest

from dbw_runtime.client_command import ClientOptions
from dbw_runtime.configuration import Options, variable
from tests.charts.chart import (
    OLDEST,
    RELEASE,
    Manifest,
    containers,
    for_all_values,
    has_labels,
    helm,
    needs_helm,
    of_kind,
    pods,
    render,
)
from tests.charts.chart import VALUES as FILES
from tests.charts.options import CHART, PROGRAMS

pytestmark = needs_helm

# Resources of cert-manager and of the Prometheus Operator, whose schemas are not Kubernetes' own: they are not
# validated here. test_chart.py looks at what they say.
WITHOUT_SCHEMA = {"Certificate", "ServiceMonitor", "PodMonitor", "PrometheusRule"}
NEWEST = "newest"

# Kinds of volumes that the Pod Security Standard `restricted` allows.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


@for_all_values
def test_lint_finds_nothing(values: str) -> None:
    done = helm("lint", "--strict", "--quiet", str(CHART), "--values", str(FILES[values]))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@for_all_values
def test_every_manifest_is_what_kubernetes_expects(values: str, version: str) -> None:
    validator = pytest.importorskip(
        "kubernetes_validate",
        reason="kubernetes-validate is not installed (pip install kubernetes-validate): manifests are NOT VALIDATED",
    )
    version = validator.latest_version() if version == NEWEST else version
    manifests = render(values, version=version)
    validated = [manifest for manifest in manifests if manifest["kind"] not in WITHOUT_SCHEMA]
    assert validated
    for manifest in validated:
        validator.validate(manifest, version, strict=True)


def test_the_validator_sees_what_is_wrong() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    (job, *_) = of_kind("Job", render()).values()
    wrong = {**job, "spec": {**job["spec"], "paralellism": 2}}
    with pytest.raises(validator.ValidationError, match="paralellism"):
        validator.validate(wrong, OLDEST, strict=True)


@for_all_values
def test_no_two_resources_have_the_same_name(values: str) -> None:
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in render(values)]
    assert len(names) == len(set(names))


@for_all_values
def test_all_resources_are_of_the_release_and_its_namespace(values: str) -> None:
    for manifest in render(values):
        assert manifest["metadata"]["namespace"] == "somewhere"
        assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE


@for_all_values
def test_all_pods_pass_the_restricted_pod_security_standard(values: str) -> None:
    for name, pod in pods(render(values)):
        spec, security = pod["spec"], pod["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security.get("runAsUser", 10001) == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all(volume.keys() - {"name"} <= VOLUMES for volume in spec["volumes"])
        for container in containers(spec):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert own.keys() <= {"allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem"}
            assert all("hostPort" not in port for port in container.get("ports", []))


@for_all_values
def test_pods_write_only_where_they_may_and_have_no_rights_in_the_cluster(values: str) -> None:
    for _, pod in pods(render(values)):
        spec = pod["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        for container in containers(spec):
            mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert mounts["/tmp"] == {"name": "tmp", "emptyDir": {}}  # noqa: S108 (a folder of the pod's own)


@for_all_values
def test_every_container_says_what_it_needs(values: str) -> None:
    for _, pod in pods(render(values)):
        for container in containers(pod["spec"]):
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]


@for_all_values
def test_every_selector_finds_pods_of_one_component(values: str) -> None:
    manifests = render(values)
    everything = [pod for _, pod in pods(manifests) if "labels" in pod["metadata"]]
    for manifest in manifests:
        selector = selector_of(manifest)
        if selector is not None:
            found = [pod for pod in everything if has_labels(pod, selector)]
            assert len({pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in found}) == 1, manifest
            assert len(found) == 1 or manifest["kind"] in {"ServiceMonitor", "PodMonitor"}


def selector_of(manifest: Manifest) -> dict[str, str] | None:
    """The labels that something looks for in pods; those of a ServiceMonitor are also its Services'."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "Service":
        return dict(spec["selector"])
    found = spec.get("selector", spec.get("podSelector"))
    return None if found is None else dict(found["matchLabels"])


@for_all_values
def test_every_port_of_a_service_is_one_of_its_pods(values: str) -> None:
    manifests = render(values)
    for service in of_kind("Service", manifests).values():
        (pod,) = [pod for _, pod in pods(manifests) if has_labels(pod, service["spec"]["selector"])]
        ports = {p["name"]: p["containerPort"] for c in pod["spec"]["containers"] for p in c["ports"]}
        for port in service["spec"].get("ports", []):
            assert ports[port["targetPort"]] == port["port"]


@for_all_values
def test_every_variable_is_an_option_of_its_program(values: str) -> None:
    programs: dict[str, type[Options]] = {**PROGRAMS, "client": ClientOptions}
    known = {p: {variable(p, name) for name in kind.__dataclass_fields__} for p, kind in programs.items()}
    for _, pod in pods(render(values)):
        (container,) = pod["spec"]["containers"]
        names = [item["name"] for item in container["env"]]
        assert len(names) == len(set(names)), f"a variable is there twice: {names}"
        options = {name for name in names if name.startswith("DBW_")}
        assert options
        assert options <= known.get(container["name"], set()) | known["client"]


@for_all_values
def test_every_folder_and_file_that_an_option_names_is_mounted(values: str) -> None:
    for name, pod in pods(render(values)):
        (container,) = pod["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        secrets = {
            f"{mount['mountPath']}/{item['path']}"
            for mount in container["volumeMounts"]
            for item in volumes[mount["name"]].get("secret", {}).get("items", [])
        }
        text = str([container["env"], container.get("livenessProbe")])
        assert set(re.findall(r"/etc/dbw/[\w./-]+", text)) <= secrets, name
        if "_STATE_DIR" in text or "_CHECKPOINT_DIR" in text:
            assert "/var/lib/dbw" in [mount["mountPath"] for mount in container["volumeMounts"]]


@for_all_values
def test_names_fit_into_those_of_pods(values: str) -> None:
    for manifest in render(values):
        assert len(manifest["metadata"]["name"]) <= 58  # and the number of a pod makes a host name of at most 63
