"""Whatever names the version names the same one."""

import re

import pytest
import yaml

from tests.version import ROOT, VERSION

FILES = ("docker/Dockerfile", "docker-compose.yml", "docker-compose.mtls.yml", "docs/kubernetes.md")
NAMED = re.compile(r"(?:ARG VERSION=|\bdbw-(?:controller|ps|worker|\$part):)(\d\S*)")


def test_the_chart_has_the_version_of_the_distribution() -> None:
    chart = yaml.safe_load((ROOT / "helm/dbw/Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {VERSION}


@pytest.mark.parametrize("file", FILES)
def test_images_are_tagged_with_the_version_of_the_distribution(file: str) -> None:
    assert set(NAMED.findall((ROOT / file).read_text())) == {VERSION}


def test_the_changelog_has_a_heading_for_what_follows_the_last_release() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]" or headings[0].startswith(f"[{VERSION}] - ")
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])
