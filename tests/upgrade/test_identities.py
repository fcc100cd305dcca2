"""Jobs stay with their owners: the same tokens and certificates open them after an upgrade."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from tests.reports import create, train
from tests.servers import Controller
from tests.upgrade.conftest import Pair
from tests.upgrade.files import NAMES, Files
from tests.upgrade.versions import Version

ITERATIONS = 5
Clients = Mapping[str, grpc.ChannelCredentials]


@contextmanager
def connected(server: Controller, credentials: grpc.ChannelCredentials) -> Iterator[ControllerServiceStub]:
    with grpc.secure_channel(server.target, credentials) as channel:
        yield ControllerServiceStub(channel)


def require_owners(clients: Clients, pair: Pair, *flags: str) -> None:
    """Each client creates a job of its name, and can use that one and no other with the next controller."""
    with pair.before.controller(*flags) as server:
        for name, credentials in clients.items():
            with connected(server, credentials) as stub:
                train(stub, name, create(stub, name), range(ITERATIONS))
        assert server.stop() == 0
    with pair.after.controller(*flags) as server:
        for name, credentials in clients.items():
            with connected(server, credentials) as stub:
                (job,) = stub.ListJobs(pb.ListJobsRequest()).jobs
                assert (job.name, job.learnt_iterations) == (name, ITERATIONS)
                train(stub, name, create(stub, name, iteration=None), range(ITERATIONS, ITERATIONS + 1))
                for another in clients.keys() - {name}:
                    with pytest.raises(grpc.RpcError):
                        stub.GetJob(pb.GetJobRequest(job=another))
        for name, credentials in clients.items():
            with connected(server, credentials) as stub:
                stub.DeleteJob(pb.DeleteJobRequest(job=name))


def test_jobs_stay_with_the_owners_of_tokens(pair: Pair, files: Files, tmp_path: Path) -> None:
    clients = {name: files.credentials(name, with_token=True) for name in NAMES}
    require_owners(clients, pair, *files.server(), "--token-file", files.identities, "--state-dir", str(tmp_path))


def test_jobs_stay_with_the_owners_of_certificates(release: Version, files: Files, tmp_path: Path) -> None:
    # Not the other way round: a release may name owners in a way that earlier ones do not know.
    clients = {name: files.credentials(name, with_token=False) for name in NAMES}
    require_owners(clients, Pair(release, Version()), *files.server(), "--state-dir", str(tmp_path))
