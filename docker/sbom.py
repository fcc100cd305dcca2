"""Print what this Python has installed as a CycloneDX document (an SBOM), after what a document that is named has.

An image has the Python and packages of Debian of its base, and an environment with ours: the base's Python writes the
first document without an argument, the environment's adds to it. Libraries inside of wheels are not told apart.
"""

import json
import platform
import re
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

Component = dict[str, Any]


def python_package(package: Distribution) -> Component:
    """A package of Python, with its licence where it gives one as an expression."""
    name = re.sub(r"[-_.]+", "-", package.name).lower()
    purl = f"pkg:pypi/{name}@{package.version.replace('+', '%2B')}"
    component = {"type": "library", "name": name, "version": package.version, "purl": purl, "bom-ref": purl}
    licence = package.metadata.json.get("license_expression")
    return component | ({"licenses": [{"expression": licence}]} if licence else {})


def debian_package(line: str, system: str) -> Component:
    """A package of Debian, from a line of dpkg-query."""
    name, release, architecture = line.split()
    escaped = release.replace("+", "%2B").replace(":", "%3A")
    purl = f"pkg:deb/debian/{name}@{escaped}?arch={architecture}&distro={system}"
    return {"type": "library", "name": name, "version": release, "purl": purl, "bom-ref": purl}


def base() -> list[Component]:
    """The operating system, its packages, and Python itself."""
    release = platform.freedesktop_os_release()
    name, number = release["ID"], release.get("VERSION_ID", "unknown")
    query = ["dpkg-query", "--show", "--showformat=${Package} ${Version} ${Architecture}\\n"]
    packages = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    python = platform.python_version()
    return [
        {"type": "operating-system", "name": name, "version": number, "bom-ref": f"{name}-{number}"},
        {"type": "platform", "name": "cpython", "version": python, "bom-ref": f"cpython-{python}"},
        *(debian_package(line, f"{name}-{number}") for line in packages),
    ]


def document(earlier: list[Component]) -> dict[str, Any]:
    """These components and the packages of this Python, each once. Without a date, so equal images have equal ones."""
    packages = sorted((python_package(package) for package in distributions()), key=lambda one: str(one["purl"]))
    components = {component["bom-ref"]: component for component in [*earlier, *packages]}
    about = [component for component in components.values() if component["name"] == "dbw"]
    for component in about:
        del components[component["bom-ref"]]
    metadata = {"component": {**about[0], "type": "application"}} if about else {}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": metadata,
        "components": [*components.values()],
    }


if __name__ == "__main__":
    named = [json.loads(Path(name).read_text("utf-8"))["components"] for name in sys.argv[1:]]
    print(json.dumps(document(named[0] if named else base()), indent=1))
