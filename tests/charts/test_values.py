"""Values: all are documented, and what is wrong is refused with a message that names it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.chart import ROOT, needs_helm, template
from tests.charts.options import CHART, PROGRAMS, SCHEMA, schema_of

DEFAULTS = CHART / "values.yaml"
GUIDE = ROOT / "docs/kubernetes.md"
# What is checked by Kubernetes, or is not ours.
PASSED_ON = {"as Kubernetes has it", "of a chart that has this one as a part; not used here"}

# Values that are Kubernetes' own, that their names explain, or the comment above the one before them.
PLAIN = {
    *(
        "nodeSelector",
        "tolerations",
        "affinity",
        "runtimeClassName",
        "priorityClassName",
        "podLabels",
        "podAnnotations",
    ),
    *("annotations", "resources", "requests", "limits", "size", "accessModes", "pullPolicy", "repository", "enabled"),
    *("fullnameOverride", "runAsUser", "runAsGroup", "fsGroup", "name", "kind", "group", "renewBefore", "interval"),
    *("minAvailable", "grafana_dashboard", "volumes", "volumeMounts", "terminationGracePeriodSeconds"),
}


@needs_helm
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("controler.enabled=false", "Additional property controler is not allowed"),
        ("controller.adress=here:50051", "controller: Additional property adress is not allowed"),
        ("controller.address=http://here:50051", "controller.address: Does not match pattern"),
        ("controller.persistence.size=big", "controller.persistence.size: Does not match pattern"),
        ("ps.kind=Deployment", 'ps.kind must be one of the following: "Job", "StatefulSet"'),
        ("ps.options.target_los=0.2", "ps.options: Additional property target_los is not allowed"),
        ("ps.options.target_loss=low", "ps.options.target_loss: Does not match pattern"),
        ("ps.options.iterations=1.5", "ps.options.iterations: Invalid type. Expected: [integer,null]"),
        ("ps.options.sync_mode=push", "ps.options.sync_mode must be one of"),
        ("ps.options.listen=0.0.0.0:1", "ps.options: Additional property listen is not allowed"),
        ("worker.gpus=-1", "worker.gpus: Must be greater than or equal to 0"),
        ("worker.gpus=one", "worker.gpus: Invalid type. Expected: integer, given: string"),
        ("worker.gpuResource=gpu", "worker.gpuResource: Does not match pattern"),
        ("worker.data.download={imagenet}", "worker.data.download.0 must be one of"),
        ("worker.tolerations[0].efect=NoSchedule", "worker.tolerations.0: Additional property efect is not allowed"),
        ("securityContext.runAsUser=0", "securityContext.runAsUser: Must be greater than or equal to 1"),
        ("image.pullPolicy=Sometimes", "image.pullPolicy must be one of"),
        ("trainings.Vision.model=mlp", 'trainings: Property name of "Vision" does not match'),
        ("trainings.vision.worker.replica=2", "trainings.vision.worker: Additional property replica is not allowed"),
        ("trainings.vision.ps.enabled=false", "trainings.vision.ps: Additional property enabled is not allowed"),
        ("tls.enabled=true", "set either tls.existingSecret or tls.certManager.issuer.name"),
        ("tls.enabled=true,tls.existingSecret=a,tls.certManager.issuer.name=b", "set either tls.existingSecret or"),
        ("tls.existingSecret=certificates", "tls.enabled is false, but tls.existingSecret"),
        ("tls.mutual=true", "set tls.enabled=true"),
        ("controller.address=here:50051", "set controller.enabled=false"),
        ("controller.enabled=false,ps.enabled=false", "controller.enabled and ps.enabled are both false"),
        ("controller.enabled=false,monitoring.rules.enabled=true", "monitoring.rules.enabled needs a controller"),
        ("ps.enabled=false,trainings.vision.model=mlp", "ps.enabled is false, but there are trainings"),
        ("monitoring.scrape.enabled=true", "set networkPolicy.metricsFrom to peers that let Prometheus in"),
        ("monitoring.scrape.enabled=true,networkPolicy.metricsFrom=null", "set networkPolicy.metricsFrom to peers"),
        ("trainings.a-name-that-is-much-too-long-for-pods.model=mlp", "it may have 41 letters; set fullnameOverride"),
    ],
)
def test_wrong_values_are_refused_with_a_message_that_names_them(setting: str, message: str) -> None:
    done = template("--set", setting)
    assert done.returncode != 0
    assert message in done.stderr


TLS = "tls.enabled=true,tls.existingSecret=certificates"
TOKENS = "tokens.existingSecret=tokens"
OPEN = "networkPolicy.enabled=false"
CONTROLLER_FROM_A_NAMESPACE = "networkPolicy.controllerFrom[0].namespaceSelector.matchLabels.team=vision"
PS_FROM_AN_ADDRESS = "networkPolicy.psFrom[0].ipBlock.cidr=10.0.0.0/8"


@needs_helm
@pytest.mark.parametrize(
    ("setting", "server"),
    [
        (OPEN, "the controller"),
        (f"{OPEN},controller.enabled=false", "the parameter server of training try"),
        (CONTROLLER_FROM_A_NAMESPACE, "the controller"),
        (f"{CONTROLLER_FROM_A_NAMESPACE},ps.enabled=false", "the controller"),
        (PS_FROM_AN_ADDRESS, "the parameter server of training try"),
        (f"{PS_FROM_AN_ADDRESS},{TLS}", "the parameter server of training try"),
        (f"{PS_FROM_AN_ADDRESS},{TOKENS}", "the parameter server of training try"),
        (f"{PS_FROM_AN_ADDRESS},{TLS},trainings.vision.{TOKENS},trainings.speech.model=mlp", "of training speech"),
        (f"{PS_FROM_AN_ADDRESS},{TLS},{TOKENS},trainings.vision.tokens.existingSecret=", "of training vision"),
    ],
)
def test_other_namespaces_are_not_served_before_callers_must_prove_who_they_are(setting: str, server: str) -> None:
    done = template("--set", setting)
    assert done.returncode != 0
    assert f"{server} would serve other namespaces" in done.stderr
    assert "insecure.otherNamespaces=true" in done.stderr


@needs_helm
@pytest.mark.parametrize(
    "setting",
    [
        f"{OPEN},{TLS},tls.mutual=true",
        f"{OPEN},{TLS},{TOKENS}",
        f"{OPEN},insecure.otherNamespaces=true",
        f"{CONTROLLER_FROM_A_NAMESPACE},{TLS},{TOKENS}",
        f"{CONTROLLER_FROM_A_NAMESPACE},controller.enabled=false",
        f"{PS_FROM_AN_ADDRESS},ps.enabled=false",
        f"{PS_FROM_AN_ADDRESS},{TLS},trainings.vision.{TOKENS}",
        "networkPolicy.psFrom[0].podSelector.matchLabels.app=mine",
    ],
)
def test_other_namespaces_are_served_if_callers_are_known_or_it_is_meant(setting: str) -> None:
    done = template("--set", setting)
    assert done.returncode == 0, done.stderr


@needs_helm
@pytest.mark.parametrize("block", re.findall(r"^```yaml\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL))
def test_the_values_that_the_guide_shows_are_accepted(block: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(block)
    done = template("--values", str(tmp_path / "values.yaml"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_schema_has_the_options_that_programs_have(program: str) -> None:
    in_schema = json.loads(SCHEMA.read_text())["definitions"][f"{program}Options"]
    assert in_schema == schema_of(program), "run python -m tests.charts.options"


def nodes(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All objects in a JSON document, with where they are."""
    if isinstance(node, dict):
        yield path, node
    for key, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from nodes(child, f"{path}/{key}")


def test_the_schema_leaves_no_object_of_ours_open() -> None:
    for path, node in nodes(json.loads(SCHEMA.read_text())):
        if "object" in node.get("type", ""):
            assert "additionalProperties" in node or node.get("description") in PASSED_ON, path


def resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """What a reference in the schema refers to."""
    return schema["definitions"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node


def leaves(node: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """All values that the schema knows, `options` as a whole."""
    for name, child in resolved(node, schema).get("properties", {}).items():
        below = resolved(child, schema)
        deeper = "properties" in below and name not in {"options", "resources", "affinity"}
        yield from leaves(below, schema, f"{path}{name}.") if deeper else [f"{path}{name}"]


def given(node: dict[str, Any], path: str = "") -> Iterator[str]:
    """All values that have a default."""
    for name, child in node.items():
        yield f"{path}{name}"
        yield from given(child, f"{path}{name}.") if isinstance(child, dict) else []


def test_every_value_that_may_be_set_has_a_default_to_be_seen() -> None:
    schema = json.loads(SCHEMA.read_text())
    assert set(leaves(schema, schema)) - {"global"} <= set(given(yaml.safe_load(DEFAULTS.read_text())))


def test_every_value_is_explained_where_it_first_appears() -> None:
    explained, comment = set(PLAIN), False
    for line in DEFAULTS.read_text().splitlines():
        key = re.match(r" *(\w+):", line)
        if key:
            section = line.endswith(":")  # which its parts explain
            assert comment or section or key[1] in explained, f"{line!r} has no comment above it"
            explained |= {key[1]} if comment else set()
        comment = line.lstrip().startswith("#")
