"""Clients and commands of one version with controllers of the other."""

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from dbw.v1 import controller_pb2 as pb
from tests.reports import create, train
from tests.servers import PATIENCE, Controller
from tests.upgrade.training import ITERATIONS, WORKERS
from tests.upgrade.versions import Version


class Mixed(NamedTuple):
    """A controller, and the version of its clients, which is another."""

    controller: Controller
    clients: Version


@pytest.fixture(scope="module", params=["newer controller", "older controller"])
def mixed(request: pytest.FixtureRequest, release: Version) -> Iterator[Mixed]:
    newer = request.param == "newer controller"
    with (Version() if newer else release).controller() as controller:
        yield Mixed(controller, release if newer else Version())


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_client_trains_imports_watches_and_deletes(kind: str, mixed: Mixed) -> None:
    done = mixed.clients.run("tests.upgrade.training", mixed.controller.target, kind, kind)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    usual = {"reason": "DECISION_REASON_BEST_RATE", "problem": None}
    assert result["first"].items() >= {"iteration": ITERATIONS, **usual}.items()
    assert result["imported"]
    assert result["second"].items() >= {"iteration": ITERATIONS + 1, **usual}.items()
    assert 1 <= result["first"]["k"] <= WORKERS
    assert result["watched"] == ITERATIONS
    assert result["jobs"] == []


def test_commands_tell_of_a_job(mixed: Mixed) -> None:
    with mixed.controller.stub() as stub:
        decisions = train(stub, "resnet", create(stub), range(ITERATIONS))

    def dbw(*arguments: str) -> str:
        done = mixed.clients.run("dbw_runtime.cli", *arguments, "--controller", mixed.controller.target)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    assert "resnet" in dbw("jobs")
    assert f"iteration {ITERATIONS}: wait for {decisions[-1].k} of 4" in dbw("why", "resnet")
    assert "resnet" in dbw("doctor", "resnet")
    assert "resnet" in dbw("delete", "resnet")
    assert "resnet" not in dbw("jobs")
    dbw("health")


def test_a_watcher_sees_iterations_end_until_the_job_is_deleted(mixed: Mixed) -> None:
    command = ("-m", "dbw_runtime.cli", "watch", "watched", "--controller", mixed.controller.target)
    with mixed.controller.stub() as stub:
        session = create(stub, "watched")
        with mixed.clients.started(*command) as watch:
            assert watch.stdout is not None
            watch.stdout.readline()  # what the columns are, once it watches
            train(stub, "watched", session, range(2))
            assert [watch.stdout.readline().split("\t")[0] for _ in range(2)] == ["0", "1"]
            stub.DeleteJob(pb.DeleteJobRequest(job="watched"))
            assert watch.wait(PATIENCE) == 0
