"""Write docker/hashes.txt: the version and hashes of everything that images are made of. `make hashes` runs it.

It needs the program uv, and asks the package index; the versions are those of constraints.txt. Hashes are those of
wheels for Linux on x86_64 and aarch64. torch has CUDA libraries on the index; PyTorch's own index has builds without,
of which the hashes are taken as well: an image may be made of either.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import unquote
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[1]
HASHES = ROOT / "docker/hashes.txt"
INDEX = os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_BUILDS = ("torch", "torchvision")
EXTRAS = ("controller", "ps", "worker")
HEADER = """\
# What images are made of: `make hashes` writes this file, from constraints.txt and the package index. pip installs
# nothing else into them (--require-hashes). torch and torchvision also have those of PyTorch's builds for processors.
"""


def requirements() -> list[str]:
    """What images need, and what installs and builds it."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project = pyproject["project"]
    extras = [item for name in EXTRAS for item in project["optional-dependencies"][name]]
    # Older ones do not take hashes from constraints.
    return ["pip>=26.1", *pyproject["build-system"]["requires"], *project["dependencies"], *extras]


def resolve() -> list[dict[str, Any]]:
    """All packages that these need on any platform, with their files, as a pylock.toml has them."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", "--universal"]
    limits = ["--python-version", "3.11", "--constraint", str(ROOT / "constraints.txt"), "--default-index", INDEX]
    lock = subprocess.run(
        [*command, *limits, "--format", "pylock.toml", "-"],
        input="\n".join(requirements()),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    packages: list[dict[str, Any]] = tomllib.loads(lock.stdout)["packages"]
    return packages


def fits_images(wheel: str) -> bool:
    """Whether a wheel of this name is for CPython 3.11 on Linux, on x86_64 or aarch64."""
    python, abi, platform = wheel.removesuffix(".whl").split("-")[-3:]
    minors = [int(minor) for minor in re.findall(r"cp3(\d+)", python)]
    runs = "py3" in python.split(".") or 11 in minors or (abi == "abi3" and min(minors) <= 11)
    return runs and bool(re.search(r"(^|\.)(any|(many)?linux\w*_(x86_64|aarch64))(\.|$)", platform))


def hashes_of_cpu_builds(name: str, version: str) -> set[str]:
    """Of PyTorch's builds without CUDA; where its index cannot be reached, those that the file has already."""
    try:
        with urlopen(f"{CPU_INDEX}/{name}/", timeout=60) as response:  # noqa: S310 (an address of ours)
            page = response.read().decode()
    except URLError as error:
        print(f"WARNING: {CPU_INDEX} cannot be reached ({error.reason}): hashes of {name} are KEPT", file=sys.stderr)
        return recorded(f"{name}=={version}")
    found = cpu_hashes(page, f"{name}-{version}")
    if not found:
        raise SystemExit(
            f"{CPU_INDEX}/{name}/ has no wheel of {name} {version}+cpu for Linux: is there such a version?"
        )
    return found


def cpu_hashes(page: str, name_and_version: str) -> set[str]:
    """Those of a version's builds without CUDA that fit, on a page of PyTorch's index."""
    links = re.findall(r'href="(?:[^"#]*/)?([^"/#]+\.whl)#sha256=([0-9a-f]{64})"', page)
    wheels = [(unquote(file), sha) for file, sha in links]
    return {sha for file, sha in wheels if file.startswith(f"{name_and_version}+cpu-") and fits_images(file)}


def recorded(requirement: str) -> set[str]:
    """The hashes that the file has of a requirement."""
    lines = HASHES.read_text().splitlines() if HASHES.exists() else []
    found = {sha for line in lines if line.startswith(f"{requirement} ") for sha in re.findall(r"[0-9a-f]{64}", line)}
    if not found:
        raise SystemExit(f"there are no hashes of {requirement} to keep: run this where {CPU_INDEX} can be reached")
    return found


def line(package: dict[str, Any]) -> str:
    """A package with the hashes of all wheels that fit."""
    name, version = package["name"], package["version"]
    wheels = [(unquote(wheel["url"].rpartition("/")[2]), wheel["hashes"]["sha256"]) for wheel in package["wheels"]]
    hashes = {sha for file, sha in wheels if fits_images(file)}
    if name in CPU_BUILDS:
        hashes |= hashes_of_cpu_builds(name, version)
    return " ".join([f"{name}=={version}", *(f"--hash=sha256:{sha}" for sha in sorted(hashes))])


if __name__ == "__main__":
    lines = [line(package) for package in resolve()]
    # Without a hash are packages that are for other systems only.
    HASHES.write_text(HEADER + "".join(f"{entry}\n" for entry in lines if "--hash" in entry))
