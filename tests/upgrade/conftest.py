from typing import NamedTuple

import pytest

from tests.upgrade.files import Files
from tests.upgrade.versions import Version, checked_out


class Pair(NamedTuple):
    """What comes before an upgrade, or a downgrade, and what comes after it."""

    before: Version
    after: Version


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """The last release."""
    return checked_out(tmp_path_factory.mktemp("release"))


@pytest.fixture(params=["upgrade", "downgrade"])
def pair(request: pytest.FixtureRequest, release: Version) -> Pair:
    """The last release and this tree, in both orders."""
    return Pair(release, Version()) if request.param == "upgrade" else Pair(Version(), release)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Certificates and tokens that outlive an upgrade."""
    return Files.create(tmp_path_factory.mktemp("files"))
