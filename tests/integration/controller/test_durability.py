"""Jobs survive the controller's death, whenever it comes."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Membership
from dbw_controller.server.store import MAGIC, SnapshotStore
from tests.reports import create, failure, train, whole_iteration
from tests.servers import Controller, begun, controller, wait_until
from tests.states import Change, changed


def learnt_iterations(stub: ControllerServiceStub, job: str = "resnet") -> int:
    return stub.GetJob(pb.GetJobRequest(job=job)).job.learnt_iterations


def metric(server: Controller, name: str) -> float:
    return next(float(line.split()[-1]) for line in server.metrics().splitlines() if line.startswith(f"{name} "))


def attach(stub: ControllerServiceStub, job: str) -> str:
    """Attach to a job as a parameter server does that is in the middle of its training."""
    return stub.CreateJob(pb.CreateJobRequest(job=job, membership=Membership(live_workers=4))).session


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a controller that was stopped, with two jobs that have learnt something."""
    folder = tmp_path_factory.mktemp("stopped")
    with controller("--state-dir", str(folder)) as server:
        with server.stub() as stub:
            for name in ("resnet", "healthy"):
                train(stub, name, create(stub, name), range(20))
        assert server.stop() == 0
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(stopped, tmp_path / "state"))


def test_a_controller_that_is_stopped_loses_nothing(tmp_path: Path) -> None:
    with controller("--state-dir", str(tmp_path)) as server:
        with server.stub() as stub:
            session = create(stub)
            decisions = train(stub, "resnet", session, range(20))
        server.stop()
    with controller("--state-dir", str(tmp_path)) as server, server.stub() as stub:
        assert learnt_iterations(stub) == 20
        assert stub.GetDecision(pb.GetDecisionRequest(job="resnet")).decision == decisions[-1]
        with pytest.raises(grpc.RpcError) as error:  # who reports must tell first who is alive
            stub.Report(pb.ReportRequest(job="resnet", session=session))
        assert failure(error.value)[1] == "SESSION_NOT_FOUND"


def test_what_is_reported_between_iterations_is_not_lost_either(tmp_path: Path) -> None:
    with controller("--state-dir", str(tmp_path)) as server:
        with server.stub() as stub:
            session = create(stub)
            wait_until((tmp_path / "resnet.job").exists)
            stub.Report(pb.ReportRequest(job="resnet", session=session, membership=Membership(live_workers=7)))
        server.stop()
    with controller("--state-dir", str(tmp_path)) as server, server.stub() as stub:
        assert stub.GetJob(pb.GetJobRequest(job="resnet")).job.membership.live_workers == 7


def test_a_training_that_ends_after_a_restart_deletes_its_job_unless_another_one_has_it(folder: Path) -> None:
    with controller("--state-dir", str(folder)) as server, server.stub() as stub:
        sessions = {name: attach(stub, name) for name in ("resnet", "healthy")}
        server.stop()
    with controller("--state-dir", str(folder)) as server, server.stub() as stub:
        attach(stub, "healthy")
        stub.DeleteJob(pb.DeleteJobRequest(job="resnet", session=sessions["resnet"]))
        with pytest.raises(grpc.RpcError) as error:
            stub.DeleteJob(pb.DeleteJobRequest(job="healthy", session=sessions["healthy"]))
        assert failure(error.value)[1] == "SESSION_NOT_FOUND"
        assert [job.name for job in stub.ListJobs(pb.ListJobsRequest()).jobs] == ["healthy"]


@pytest.mark.parametrize("seed", range(3))
def test_a_controller_that_is_killed_loses_at_most_what_it_said_was_not_saved(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    iteration = learnt = unsaved = 0
    for _ in range(3):
        with controller("--state-dir", str(tmp_path), "--save-iterations", "10") as server:
            with server.stub() as stub:
                session = attach(stub, "resnet")
                assert learnt - unsaved <= learnt_iterations(stub) <= learnt
                until = iteration + rng.randrange(5, 60)
                train(stub, "resnet", session, range(iteration, until))
                iteration, learnt, unsaved = until, learnt_iterations(stub), server.unsaved_iterations("resnet")
            server.kill()


def test_a_killed_controller_goes_on_as_if_it_had_never_died(tmp_path: Path) -> None:
    with controller("--state-dir", str(tmp_path), "--save-iterations", "1") as server:
        with server.stub() as stub:
            expected = train(stub, "resnet", create(stub), range(30))
            session = create(stub, "other")
            before = train(stub, "other", session, range(15))
            wait_until(lambda: server.unsaved_iterations("other") == 0)
        server.kill()
    with controller("--state-dir", str(tmp_path)) as server, server.stub() as stub:
        session = attach(stub, "other")
        repeated = whole_iteration("other", session, 14, before[13].k)
        answer = next(stub.Coordinate(iter([repeated]))).decision
        assert answer == before[14], "the request that a client repeats gets the same answer"
        assert learnt_iterations(stub, "other") == 15
        assert [*before, *train(stub, "other", session, range(15, 30))] == expected


def test_what_was_imported_is_saved_before_the_answer(tmp_path: Path) -> None:
    with controller("--state-dir", str(tmp_path)) as server:
        with server.stub() as stub:
            train(stub, "teacher", create(stub, "teacher"), range(20))
            (piece,) = stub.ExportJobState(pb.ExportJobStateRequest(job="teacher"))
            session = create(stub, "pupil")
            request = pb.ImportJobStateRequest(job="pupil", session=session, header=piece.header, data=piece.data)
            stub.ImportJobState(iter([request]))
        server.kill()
    with controller("--state-dir", str(tmp_path)) as server, server.stub() as stub:
        assert learnt_iterations(stub, "pupil") == 20


def test_a_deleted_job_stays_deleted(tmp_path: Path) -> None:
    with controller("--state-dir", str(tmp_path)) as server:
        with server.stub() as stub:
            create(stub)
            stub.DeleteJob(pb.DeleteJobRequest(job="resnet"))
        server.kill()
    with controller("--state-dir", str(tmp_path)) as server, server.stub() as stub:
        assert not stub.ListJobs(pb.ListJobsRequest()).jobs


def cut_short(snapshot: Path) -> None:
    snapshot.write_bytes(snapshot.read_bytes()[:-10])


def flip_a_bit(snapshot: Path) -> None:
    content = bytearray(snapshot.read_bytes())
    content[-100] ^= 1
    snapshot.write_bytes(content)


def empty(snapshot: Path) -> None:
    snapshot.write_bytes(b"")


def rewrite(snapshot: Path, change: Change) -> None:
    state = changed(snapshot.read_bytes()[len(MAGIC) + 32 :], change)
    snapshot.unlink()
    shutil.rmtree(snapshot.parent / "scratch", ignore_errors=True)
    store = SnapshotStore(snapshot.parent / "scratch")
    store.write(snapshot.stem, state)
    (snapshot.parent / "scratch" / snapshot.name).rename(snapshot)
    store.close()


def newer(snapshot: Path) -> None:
    rewrite(snapshot, lambda record: record["job"].update(version=99))


def senseless(snapshot: Path) -> None:
    rewrite(snapshot, lambda record: record["job"].update(iteration="many"))


def in_the_far_future(snapshot: Path) -> None:
    rewrite(snapshot, lambda record: record.update(created=1e300))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (cut_short, "damaged"),
        (flip_a_bit, "damaged"),
        (empty, "damaged"),
        (senseless, "damaged"),
        (in_the_far_future, "damaged"),
        (newer, "newer"),
    ],
)
def test_a_snapshot_that_cannot_be_used_is_set_aside_and_stops_no_other(
    folder: Path, spoil: Callable[[Path], None], kind: str
) -> None:
    snapshot = folder / "resnet.job"
    spoil(snapshot)
    spoilt = snapshot.read_bytes()
    with controller("--state-dir", str(folder)) as server, server.stub() as stub:
        assert [job.name for job in stub.ListJobs(pb.ListJobsRequest()).jobs] == ["healthy"]
        line = server.wait_for_log("its snapshot cannot be used", job="resnet", level="error")
        assert "set aside" in line["message"]
        create(stub)  # the name is free, and what was set aside stays
    (aside,) = folder.glob("resnet.job.*-*")
    assert aside.name == f"resnet.job.{kind}-1"
    assert aside.read_bytes() == spoilt


def test_what_a_killed_write_left_behind_is_no_snapshot(folder: Path) -> None:
    (folder / "resnet.tmp").write_bytes((folder / "resnet.job").read_bytes()[:50])
    with controller("--state-dir", str(folder)) as server, server.stub() as stub:
        assert learnt_iterations(stub) == 20
        assert not (folder / "resnet.tmp").exists()


def test_a_good_snapshot_that_cannot_be_read_stops_the_start(folder: Path) -> None:
    snapshot = folder / "resnet.job"
    snapshot.rename(folder / "kept")
    snapshot.symlink_to(snapshot)  # too many levels of symbolic links: nobody can read that, root neither
    with begun(Controller("--state-dir", str(folder))) as server:
        assert server.wait() == 1
    assert f"the snapshot {snapshot} cannot be read" in "".join(server.other_output)
    assert snapshot.is_symlink()
    (folder / "kept").rename(snapshot)
    with controller("--state-dir", str(folder)) as server, server.stub() as stub:
        assert learnt_iterations(stub) == 20


@pytest.fixture
def lost_folder(tmp_path: Path) -> Iterator[Controller]:
    """A controller whose folder has been removed, after a job was saved there."""
    folder = tmp_path / "state"
    with controller("--state-dir", str(folder), "--save-iterations", "2") as server:
        with server.stub() as stub:
            train(stub, "resnet", create(stub), range(20))
            wait_until(lambda: server.unsaved_iterations("resnet") == 0)
        shutil.rmtree(folder)
        yield server


def test_a_folder_that_is_gone_does_not_stop_decisions_and_is_told(lost_folder: Controller) -> None:
    with lost_folder.stub() as stub:
        assert len(train(stub, "other", create(stub, "other"), range(20))) == 20
        lost_folder.wait_for_log("its snapshot cannot be written", job="other")
        assert metric(lost_folder, "dbw_snapshot_failures_total") > 0
        with pytest.raises(grpc.RpcError) as error:
            stub.DeleteJob(pb.DeleteJobRequest(job="resnet"))
        assert failure(error.value)[:2] == (grpc.StatusCode.UNAVAILABLE, "DISK_FAILED")
        assert learnt_iterations(stub) == 20, "a request that fails changes nothing"


def test_what_is_imported_while_the_disk_fails_is_learnt_and_saved_later(lost_folder: Controller) -> None:
    with lost_folder.stub() as stub:
        (piece,) = stub.ExportJobState(pb.ExportJobStateRequest(job="resnet"))
        session = create(stub, "pupil")
        request = pb.ImportJobStateRequest(job="pupil", session=session, header=piece.header, data=piece.data)
        assert stub.ImportJobState(iter([request])).job.learnt_iterations == 20
        lost_folder.wait_for_log("its snapshot cannot be written", job="pupil")


def test_a_controller_that_cannot_save_says_so_when_it_is_stopped(lost_folder: Controller) -> None:
    with lost_folder.stub() as stub:
        create(stub, "other")
    assert lost_folder.stop() == 1
    assert "other" in lost_folder.wait_for_log("stopped, but not all is saved")["message"]


def test_a_folder_that_was_made_again_is_used_by_one_controller(lost_folder: Controller, tmp_path: Path) -> None:
    with controller("--state-dir", str(tmp_path / "state")) as second, second.stub() as newer:
        create(newer)
        with lost_folder.stub() as older:
            train(older, "resnet", attach(older, "resnet"), range(20, 40))
        line = lost_folder.wait_for_log("its snapshot cannot be written", job="resnet", level="error")
        assert "was removed or replaced" in line["message"]
        assert lost_folder.stop() == 1
        assert second.stop() == 0
    with controller("--state-dir", str(tmp_path / "state")) as third, third.stub() as stub:
        assert learnt_iterations(stub) == 0, "as the second controller saved it"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Controller]:
    """A controller whose folder has become a file, so that no snapshot can be written."""
    folder = tmp_path / "state"
    with controller("--state-dir", str(folder), "--save-iterations", "2") as server:
        shutil.rmtree(folder)
        folder.write_text("not a folder")
        yield server


def test_a_disk_that_fails_does_not_stop_decisions(full_disk: Controller) -> None:
    with full_disk.stub() as stub:
        assert len(train(stub, "resnet", create(stub), range(20))) == 20
    full_disk.wait_for_log("its snapshot cannot be written", job="resnet")
    assert "dbw_snapshot_failures_total 0.0" not in full_disk.metrics()
