"""A real Docker engine, and our Compose project on it, for tests that run what is delivered."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.request import urlopen

from tests.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
# How long containers may take for anything before a test gives up; nothing is measured by it.
PATIENCE = 240.0
SERVICES = ("controller", "ps", "worker")


def run(*command: str, **environment: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment})
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


@cache
def compose_command() -> tuple[str, ...]:
    """Compose, as a plugin of the client or as a program of its own."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True)
    return ("docker", "compose") if plugin.returncode == 0 else ("docker-compose",)


def build(target: str, *options: str, dockerfile: Path = ROOT / "docker/Dockerfile") -> None:
    """Build a stage of the Dockerfile."""
    arguments = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST")
    given = [word for name in arguments if os.environ.get(name) for word in ("--build-arg", name)]
    run("docker", "build", "--file", str(dockerfile), "--target", target, *options, *given, ".")


@cache
def build_images() -> None:
    """Build all images, once."""
    for name in SERVICES:
        build(name, "--tag", f"dbw-{name}:{VERSION}")


def wait_until(condition: Callable[[], object], failed: Callable[[], str]) -> None:
    """Wait for what containers bring about; says what `failed` tells if it does not happen."""
    deadline = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < deadline, failed()
        sleep(0.25)


class Project:
    """A Compose project: the services of docker-compose.yml, and of overlays."""

    def __init__(self, name: str, *overlays: str, **variables: str) -> None:
        files = [word for file in ("docker-compose.yml", *overlays) for word in ("--file", file)]
        self._name, self._command = name, (*compose_command(), "--project-name", name, *files)
        ports = dict.fromkeys(("CONTROLLER_PORT", "CONTROLLER_METRICS_PORT", "PS_PORT", "PS_METRICS_PORT"), "0")
        self._variables = {**ports, **variables}

    def compose(self, *arguments: str) -> str:
        """What Compose prints."""
        return run(*self._command, *arguments, **self._variables)

    def logs(self) -> str:
        """What all services have said."""
        return self.compose("logs", "--no-color")

    def containers(self, service: str) -> list[str]:
        """The containers of a service, also those that have ended."""
        return self.compose("ps", "--all", "--quiet", service).split()

    def running(self) -> list[str]:
        """The service of each container that runs."""
        mine = f"label=com.docker.compose.project={self._name}"
        service = '{{.Label "com.docker.compose.service"}}'
        return sorted(run("docker", "ps", "--filter", mine, "--format", service).split())

    def state(self, container: str) -> dict[str, Any]:
        """What the engine knows of a container."""
        state: dict[str, Any] = json.loads(run("docker", "inspect", container))[0]
        return state

    def crash(self, container: str) -> None:
        """Kill a container's process, as the kernel would: what the engine itself kills it does not restart."""
        before = self.state(container)
        kill = f"import os; os.kill({before['State']['Pid']}, 9)"
        python = ("--entrypoint", "/opt/dbw/bin/python", f"dbw-controller:{VERSION}", "-c")
        run("docker", "run", "--rm", "--pid", "host", "--user", "0", *python, kill)
        self.wait(lambda: self.state(container)["RestartCount"] > before["RestartCount"])

    def port(self, service: str, port: int) -> int:
        """The port of this machine that one of a service is published on; another one after each start."""
        return int(run("docker", "port", self.containers(service)[0], str(port)).splitlines()[0].rpartition(":")[2])

    def metric(self, service: str, port: int, name: str) -> float | None:
        """A sample that a service exports, if it does at this moment."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port(service, port)}/metrics", timeout=PATIENCE) as response:
                lines = response.read().decode().splitlines()
        except (AssertionError, OSError):  # it is down
            return None
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), None)

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait for something; shows what the services said if it does not happen."""
        wait_until(condition, self.logs)


@contextmanager
def project(name: str, *overlays: str, **variables: str) -> Iterator[Project]:
    """A project with fresh images, and nothing left of it afterwards."""
    build_images()
    own = Project(name, *overlays, **variables)
    try:
        yield own
    finally:
        own.compose("down", "--volumes", "--timeout", "5")
