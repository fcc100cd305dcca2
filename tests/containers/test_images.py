"""The images, as they are delivered."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.engine import ROOT, SERVICES, build, build_images, run, wait_until
from tests.version import VERSION

HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")  # noqa: S108


@pytest.fixture(autouse=True)
def images() -> None:
    build_images()


def image(name: str) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(run("docker", "image", "inspect", f"dbw-{name}:{VERSION}"))[0]
    return described


@pytest.fixture
def controller() -> Iterator[str]:
    """A controller that may write only what it has to."""
    options = (*HARDENED, "--volume", "/var/lib/dbw", "--env", "DBW_CONTROLLER_INSECURE=true")
    name = run("docker", "run", "--detach", *options, f"dbw-controller:{VERSION}").strip()
    try:
        yield name
    finally:
        run("docker", "rm", "--force", "--volumes", name)


def status(container: str) -> str:
    return run("docker", "inspect", "--format", "{{.State.Health.Status}}", container).strip()


def logs(container: str) -> str:
    done = subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_runs_its_program_as_a_user_without_rights(name: str) -> None:
    config = image(name)["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["dbw", name]
    assert config["Healthcheck"]["Test"][:3] == ["CMD", "dbw", "health"]
    assert config["Labels"]["org.opencontainers.image.version"] == VERSION
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert "usage: dbw" in run("docker", "run", "--rm", *HARDENED, f"dbw-{name}:{VERSION}", "--help")


@pytest.mark.parametrize("package", ["torch", "pip", "cvxpy"])
def test_the_controller_has_no_package_that_it_does_not_need(package: str) -> None:
    look = f"import importlib.util; print(importlib.util.find_spec({package!r}))"
    program = ("--entrypoint", "/opt/dbw/bin/python", f"dbw-controller:{VERSION}", "-c", look)
    assert run("docker", "run", "--rm", *program) == "None\n"


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_lists_what_it_consists_of(name: str) -> None:
    program = ("docker", "run", "--rm", "--network", "none", "--entrypoint")
    listed = json.loads(run(*program, "cat", f"dbw-{name}:{VERSION}", "/opt/dbw/sbom.cdx.json"))
    parts = [listed["metadata"]["component"], *listed["components"]]
    purls = {part["purl"] for part in parts if "purl" in part}
    look = "import importlib.metadata as m; print(*(f'{d.name} {d.version}' for d in m.distributions()), sep='\\n')"
    for line in run(*program, "/opt/dbw/bin/python", f"dbw-{name}:{VERSION}", "-c", look).splitlines():
        package, version = line.split()
        purl = f"pkg:pypi/{re.sub('[-_.]+', '-', package).lower()}@{version.replace('+', '%2B')}"
        assert purl in purls
    assert any(purl.startswith("pkg:deb/debian/libc6@") for purl in purls)
    assert image(name)["Config"]["Labels"]["org.opencontainers.image.base.name"] == "python:3.11-slim"


def test_no_package_is_installed_whose_hash_is_another(tmp_path: Path) -> None:
    step = "# What installs and builds is pinned"
    original = (ROOT / "docker/Dockerfile").read_text()
    assert step in original
    other = original.replace(step, f"RUN sed -i '/^mdurl==/s/sha256:./sha256:0/' hashes.txt\n{step}")
    (tmp_path / "Dockerfile").write_text(other)
    with pytest.raises(AssertionError, match="DO NOT MATCH THE HASHES"):
        build("build-controller", dockerfile=tmp_path / "Dockerfile")


def test_a_controller_compiles_nothing_at_its_start(controller: str) -> None:
    wait_until(lambda: "ready" in logs(controller), lambda: logs(controller))
    # What is not in the image would be compiled into the copy of its cache.
    kernels = "find $DBW_KERNELS -name '*.nbc' | wc -l; find $HOME -name '*.nbc' | wc -l"
    in_image, in_use = run("docker", "exec", controller, "sh", "-c", kernels).split()
    assert in_image == in_use
    assert int(in_image) > 0


def test_a_controller_gets_healthy_and_stops_when_it_is_told_to(controller: str) -> None:
    wait_until(lambda: status(controller) == "healthy", lambda: logs(controller))
    run("docker", "stop", "--time", "100", controller)
    assert "stopped" in logs(controller).splitlines()[-1]
    assert run("docker", "inspect", "--format", "{{.State.ExitCode}}", controller) == "0\n"
