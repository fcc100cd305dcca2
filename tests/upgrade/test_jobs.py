"""What a controller has learnt outlives an upgrade, and a downgrade."""

import shutil
from pathlib import Path

import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Decision
from dbw.v1.job_pb2 import AdaSyncPolicy, BlindDbwPolicy, DbwPlusPolicy, DbwPolicy, JobSpec, Policy
from tests.reports import create, train
from tests.upgrade.conftest import Pair
from tests.upgrade.versions import Version

SPECS = {
    "dbw": JobSpec(policy=Policy(dbw=DbwPolicy()), k_min=2),
    "dbw-plus": JobSpec(policy=Policy(dbw_plus=DbwPlusPolicy())),
    "b-dbw": JobSpec(policy=Policy(blind_dbw=BlindDbwPolicy())),
    "adasync": JobSpec(policy=Policy(adasync=AdaSyncPolicy(initial_k=2))),
}
ITERATIONS, MORE = 20, 10


def learnt(stub: ControllerServiceStub, job: str) -> int:
    return stub.GetJob(pb.GetJobRequest(job=job)).job.learnt_iterations


def outline(decision: Decision) -> list[object]:
    """What a parameter server does with a decision, and why it was made."""
    deadline = decision.deadline_seconds if decision.HasField("deadline_seconds") else None
    return [decision.iteration, decision.k, decision.reason, None if deadline is None else pytest.approx(deadline)]


def went_on(version: Version, folder: Path) -> dict[str, list[list[object]]]:
    """What a controller decides that goes on with the jobs in a folder, the newest decision of before first."""
    with version.controller("--state-dir", str(folder)) as server, server.stub() as stub:
        assert {job: learnt(stub, job) for job in SPECS} == dict.fromkeys(SPECS, ITERATIONS)
        decisions = {}
        for job, spec in SPECS.items():
            before = stub.GetDecision(pb.GetDecisionRequest(job=job)).decision
            session = create(stub, job, spec=spec, iteration=None)  # in the middle of its training
            after = train(stub, job, session, range(ITERATIONS, ITERATIONS + MORE))
            decisions[job] = [outline(decision) for decision in (before, *after)]
        assert server.stop() == 0
    assert sorted(path.stem for path in folder.glob("*.job*")) == sorted(SPECS)  # none was set aside
    return decisions


def test_jobs_go_on_from_the_other_version_s_snapshots_as_they_do_from_one_s_own(pair: Pair, tmp_path: Path) -> None:
    folder, copy = tmp_path / "state", tmp_path / "copy"
    with pair.before.controller("--state-dir", str(folder)) as server, server.stub() as stub:
        for job, spec in SPECS.items():
            train(stub, job, create(stub, job, spec=spec), range(ITERATIONS))
        assert server.stop() == 0
    shutil.copytree(folder, copy)
    assert went_on(pair.after, folder) == went_on(pair.before, copy)


def test_a_job_goes_on_from_the_other_version_s_export(pair: Pair) -> None:
    with pair.before.controller() as server, server.stub() as stub:
        train(stub, "dbw", create(stub, "dbw", spec=SPECS["dbw"]), range(ITERATIONS))
        exported = list(stub.ExportJobState(pb.ExportJobStateRequest(job="dbw")))
    with pair.after.controller() as server, server.stub() as stub:
        session = create(stub, "dbw", spec=SPECS["dbw"], iteration=ITERATIONS)
        pieces = (pb.ImportJobStateRequest(data=piece.data) for piece in exported[1:])
        first = pb.ImportJobStateRequest(job="dbw", session=session, header=exported[0].header, data=exported[0].data)
        stub.ImportJobState(iter([first, *pieces]))
        assert learnt(stub, "dbw") == ITERATIONS
        assert train(stub, "dbw", session, range(ITERATIONS, ITERATIONS + 1))[0].iteration == ITERATIONS + 1
