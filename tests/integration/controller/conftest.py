from collections.abc import Iterator

import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from tests.servers import Controller, controller


@pytest.fixture(scope="module")
def server() -> Iterator[Controller]:
    """A controller for all tests of a file, which may have one of its own instead."""
    with controller() as running:
        yield running


@pytest.fixture
def stub(server: Controller) -> Iterator[ControllerServiceStub]:
    """A connection to it; no job is left afterwards."""
    with server.stub() as connected:
        yield connected
        while jobs := connected.ListJobs(pb.ListJobsRequest()).jobs:
            for job in jobs:
                connected.DeleteJob(pb.DeleteJobRequest(job=job.name))
