"""A controller decides by policies of its operator, and loads none that a client names."""

from pathlib import Path

import grpc
import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import EndedIteration, Membership
from dbw.v1.job_pb2 import CustomPolicy, JobSpec, Policy
from dbw_runtime.failure import reason_of
from tests.programs import controller_program
from tests.reports import summary
from tests.servers import Controller, controller

ROOT = Path(__file__).parents[3]
PLACE = f"{ROOT / 'examples/policy/patient.py'}:Patient"


def create(server: Controller, name: str, **parameters: float) -> pb.CreateJobResponse:
    spec = JobSpec(policy=Policy(custom=CustomPolicy(name=name, parameters=parameters)))
    request = pb.CreateJobRequest(job="own", spec=spec, membership=Membership(live_workers=4), iteration=0)
    with server.stub() as stub:
        return stub.CreateJob(request)


def test_jobs_may_name_the_policies_that_the_operator_has_loaded(tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path))
    with controller("--policies", PLACE, *state) as server:
        created = create(server, PLACE, factor=3.0)
        assert created.job.decision.k == 4
        assert created.job.spec.policy.custom.parameters == {"factor": 3.0}
        server.stop()
    with controller("--policies", PLACE, *state) as server, server.stub() as stub:
        assert stub.GetJob(pb.GetJobRequest(job="own")).job.spec == created.job.spec
        server.stop()
    with controller(*state) as server, server.stub() as stub:  # which knows nothing of it
        assert not stub.ListJobs(pb.ListJobsRequest()).jobs
        assert list(tmp_path.glob("own.job.unsupported-1"))


def test_one_of_them_may_be_the_default() -> None:
    with controller("--default-policy", f"{PLACE}:factor=1.5") as server, server.stub() as stub:
        request = pb.CreateJobRequest(job="own", membership=Membership(live_workers=4), iteration=0)
        assert stub.CreateJob(request).job.spec.policy.custom == CustomPolicy(name=PLACE, parameters={"factor": 1.5})


def test_a_client_cannot_make_a_controller_import_anything(tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'sprung')!r}).touch()\nclass Patient: pass\n")
    with controller() as server:
        for name in (f"{trap}:Patient", PLACE, "os:getcwd"):
            with pytest.raises(grpc.RpcError) as caught:
                create(server, name)
            assert reason_of(caught.value) == "INVALID_VALUE"
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("place", ["nowhere.py:Patient", "dbw_controller.core.errors:JobError", f"{PLACE}s"])
def test_a_place_without_a_policy_is_wrong_usage(place: str) -> None:
    done = controller_program("--policies", place).run()
    assert done.returncode == 2
    assert "--policies" in done.stderr


FAILING = """
from dbw_controller.core.policies import Sync

class Failing(Sync):
    def choose(self, seen):
        if seen.iteration == 3:
            raise RuntimeError("a bug")
        return super().choose(seen)
"""


def test_iterations_before_the_one_that_a_policy_fails_for_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "failing.py"
    file.write_text(FAILING)
    with controller("--policies", f"{file}:Failing") as server, server.stub() as stub:
        session = create(server, f"{file}:Failing").session
        preceding = [EndedIteration(summary=summary(iteration)) for iteration in range(4)]
        request = pb.EndIterationRequest(job="own", session=session, preceding=preceding, summary=summary(4))
        with pytest.raises(grpc.RpcError) as caught:
            stub.EndIteration(request)
        assert reason_of(caught.value) == "BUG"
        assert 'dbw_iterations_total{dbw_job="own"} 2.0' in server.metrics()
        assert stub.EndIteration(request).decision.iteration == 5
        assert 'dbw_iterations_total{dbw_job="own"} 5.0' in server.metrics()
