"""The list of what an image consists of."""

from importlib.metadata import version

from docker.sbom import debian_package, document


def test_a_document_has_the_packages_of_this_python_and_those_that_were_there_before() -> None:
    earlier = [debian_package("libc6 1:2.36-9+deb12u14 amd64", "debian-12")]
    made = document(earlier)
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["component"]["purl"] == f"pkg:pypi/dbw@{version('dbw')}"
    purls = [component["purl"] for component in made["components"]]
    assert purls[0] == "pkg:deb/debian/libc6@1%3A2.36-9%2Bdeb12u14?arch=amd64&distro=debian-12"
    assert f"pkg:pypi/prometheus-client@{version('prometheus-client')}" in purls
    assert not [purl for purl in purls if "/dbw@" in purl]


def test_a_document_is_the_same_each_time_and_has_nothing_twice() -> None:
    made = document(document([])["components"])
    assert made == document([])
