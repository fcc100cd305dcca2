"""What images are made of: all of it has hashes, in the versions that are tested."""

import re
from collections.abc import Iterator
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docker.hashes import CPU_BUILDS, HASHES, ROOT, cpu_hashes, fits_images, requirements

SHA = "0123456789abcdef" * 4


def versions(path: str) -> dict[str, str]:
    """The version of each package in a file of requirements."""
    pins = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / path).read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def needed(requirement: str) -> Iterator[str]:
    """The names of all packages that a requirement brings here."""
    parsed = Requirement(requirement)
    if parsed.marker is None or parsed.marker.evaluate({"extra": ""}):
        yield canonicalize_name(parsed.name)
        if parsed.name != "pip":
            for dependency in requires(parsed.name) or []:
                yield from needed(dependency)


def test_all_that_images_need_has_hashes_of_wheels_for_both_processors() -> None:
    built_with = {"hatchling", "trove-classifiers", "tomlkit"}  # not installed here
    ours = [item for item in requirements() if Requirement(item).name not in built_with]
    lines = {line.partition("==")[0]: line.count("--hash=sha256:") for line in HASHES.read_text().splitlines()}
    assert lines
    for name in {name for item in ours for name in needed(item)} | built_with:
        assert lines.get(name), f"{name} has no hash: run `make hashes`"
    for name in CPU_BUILDS:
        assert lines[name] >= 4  # with CUDA and without


def test_versions_are_those_that_are_tested() -> None:
    tested, installed = versions("constraints.txt"), versions("docker/hashes.txt")
    both = tested.keys() & installed.keys()
    assert {"torch", "numpy", "grpcio"} <= both
    assert {name: tested[name] for name in both} == {name: installed[name] for name in both}, "run `make hashes`"


@pytest.mark.parametrize(
    ("wheel", "fits"),
    [
        ("rich-15.0.0-py3-none-any.whl", True),
        ("six-1.17.0-py2.py3-none-any.whl", True),
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", True),
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl", True),
        ("protobuf-7.36.2-cp310-abi3-manylinux2014_x86_64.whl", True),
        ("cryptography-50.0.2-cp314-abi3-manylinux_2_34_x86_64.whl", False),
        ("numpy-2.4.6-cp312-cp312-manylinux_2_27_x86_64.whl", False),
        ("numpy-2.4.6-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("numpy-2.4.6-cp311-cp311-win_amd64.whl", False),
        ("numpy-2.4.6-cp311-cp311-macosx_14_0_arm64.whl", False),
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_ppc64le.whl", False),
    ],
)
def test_a_wheel_fits_which_images_can_install(wheel: str, fits: bool) -> None:
    assert fits_images(wheel) is fits


def test_hashes_of_builds_without_cuda_are_those_of_pytorchs_own_index() -> None:
    page = "".join(
        f'<a href="/whl/cpu/{name}#sha256={SHA[number:] + SHA[:number]}" data-core-metadata="x">{name}</a><br/>\n'
        for number, name in enumerate(
            [
                "torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl",
                "torch-2.13.0%2Bcpu-cp312-cp312-manylinux_2_28_x86_64.whl",
                "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl",
                "torch-2.13.1%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl",
            ]
        )
    )
    assert cpu_hashes(page, "torch-2.13.0") == {SHA}
