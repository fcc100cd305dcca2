"""A controller whose disk hangs decides as before, says what is wrong, and stops."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dbw.v1 import controller_pb2 as pb
from dbw_controller.server.saver import DISK_SECONDS
from tests.disks import Disk, mounted_disk
from tests.reports import create, failure, train
from tests.servers import PATIENCE, Controller, controller, wait_until

SAVE_ITERATIONS = 2


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted_disk(tmp_path) as disk:
        yield disk


@pytest.fixture
def server(disk: Disk) -> Iterator[Controller]:
    """A controller with two jobs, whose disk still works."""
    flags = ("--state-dir", str(disk.folder / "state"), "--save-iterations", str(SAVE_ITERATIONS))
    with controller(*flags) as server:
        with server.stub() as stub:
            for name in ("resnet", "vgg"):
                create(stub, name)
        wait_until(lambda: len(list((disk.folder / "state").glob("*.job"))) == 2)
        yield server


def metric(server: Controller, name: str) -> float:
    return next(float(line.split()[-1]) for line in server.metrics().splitlines() if line.startswith(f"{name} "))


def train_again(server: Controller, job: str) -> list[object]:
    """Train with a job as a parameter server does that has just been started."""
    with server.stub() as stub:
        return list(train(stub, job, create(stub, job), range(50 * SAVE_ITERATIONS)))


def test_all_jobs_are_decided_for_while_the_disk_hangs_and_saved_when_it_works_again(
    disk: Disk, server: Controller
) -> None:
    with disk.hanging():
        for name in ("resnet", "vgg"):
            assert len(train_again(server, name)) == 50 * SAVE_ITERATIONS
        assert server.unsaved_iterations("vgg") > SAVE_ITERATIONS
        server.wait_for_log("the disk hangs: the snapshot of", level="warning")
        wait_until(lambda: metric(server, "dbw_disk_busy_seconds") >= 10)
    wait_until(lambda: server.unsaved_iterations("vgg") == 0)
    wait_until(lambda: metric(server, "dbw_disk_busy_seconds") == 0)


def test_requests_that_need_the_disk_do_not_wait_long_and_those_that_fail_change_nothing(
    disk: Disk, server: Controller
) -> None:
    with server.stub() as stub:
        with disk.hanging():
            train(stub, "resnet", create(stub, "resnet"), range(20))
            (piece,) = stub.ExportJobState(pb.ExportJobStateRequest(job="resnet"))
            session = create(stub, "pupil")
            request = pb.ImportJobStateRequest(job="pupil", session=session, header=piece.header, data=piece.data)
            assert stub.ImportJobState(iter([request]), timeout=PATIENCE).job.learnt_iterations == 20
            for _ in range(2):
                with pytest.raises(grpc.RpcError) as error:
                    stub.DeleteJob(pb.DeleteJobRequest(job="resnet"), timeout=PATIENCE)
                code, reason, _, (retry,) = failure(error.value)
                assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "DISK_FAILED")
                assert retry.retry_delay.seconds > DISK_SECONDS
            assert stub.GetJob(pb.GetJobRequest(job="resnet")).job.learnt_iterations == 20
        wait_until(lambda: metric(server, "dbw_disk_busy_seconds") == 0)
        stub.DeleteJob(pb.DeleteJobRequest(job="vgg"))
    assert server.stop() == 0
    with controller("--state-dir", str(disk.folder / "state")) as again, again.stub() as stub:
        assert [(job.name, job.learnt_iterations) for job in stub.ListJobs(pb.ListJobsRequest()).jobs] == [
            ("pupil", 20),
            ("resnet", 20),
        ]


def test_a_controller_whose_disk_hangs_can_be_stopped_and_says_what_is_not_saved(
    disk: Disk, server: Controller
) -> None:
    with disk.hanging():
        train_again(server, "resnet")
        server.process.terminate()
        assert "resnet" in server.wait_for_log("stopped, but not all is saved")["message"]
    assert server.wait() == 1  # the kernel keeps a process that waits for a frozen disk
