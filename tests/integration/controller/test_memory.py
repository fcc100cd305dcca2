"""What clients can make a controller's memory grow by, for each megabyte that they send.

Resident memory of a real process, from the kernel's account, after much has been sent in many requests: what the
allocator keeps for the next request does not decide. Each test has its own process.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Arrivals, IterationSummary, Membership
from dbw.v1.job_pb2 import DbwPlusPolicy, JobSpec, Policy
from dbw_controller.contract import PIECE_BYTES
from dbw_controller.core.kernels import COMPILED
from dbw_runtime.failure import reason_of
from tests.reports import create, failure, train, whole_iteration
from tests.servers import PATIENCE, Controller, controller
from tests.states import changed

MIB = 2**20
# Growth of resident memory for each byte that is sent, where what was sent is dropped or refused: what the allocator
# keeps for the next time.
DROPPED_FACTOR = 0.5
# Where it is kept: a cell of a state is 16 bytes on the wire and 64 in memory. Those of the state that it replaces are
# there meanwhile, and copies of the bytes that arrived.
STATE_FACTOR = 12.0
# Beside: pages of programs and libraries that are read for the first time, buffers of gRPC.
SLACK = 24 * MIB
pytestmark = pytest.mark.skipif(not COMPILED, reason="columns are lists")


class Watched:
    """A controller, and what its memory was at first."""

    def __init__(self, server: Controller, stub: ControllerServiceStub) -> None:
        self.server, self.stub = server, stub
        self.sent = 0
        session = create(stub, "first")  # which brings in what all requests need
        train(stub, "first", session, range(5))
        list(stub.ExportJobState(pb.ExportJobStateRequest(job="first")))
        stub.DiagnoseJob(pb.DiagnoseJobRequest(job="first"))
        self._before = self._status("VmRSS")

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.server.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    @property
    def growth(self) -> int:
        return self._status("VmRSS") - self._before

    @property
    def peak_growth(self) -> int:
        return self._status("VmHWM") - self._before

    def send(self, rpc: Callable[..., Any], request: Any, *, refused: str | None = None) -> None:
        """Send a request that is taken, or refused for this reason."""
        self.sent += request.ByteSize()
        reason = None
        try:
            rpc(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            reason = reason_of(error)
        assert reason == refused


@pytest.fixture
def watched() -> Iterator[Watched]:
    with controller() as server, server.stub() as stub:
        yield Watched(server, stub)


def unknown_field(size: int) -> bytes:
    """A field of this size that nobody knows."""
    length, varint = size, b""
    while length >= 0x80:
        varint, length = varint + bytes([length & 0x7F | 0x80]), length >> 7
    return b"\x9a\x3f" + varint + bytes([length]) + bytes(size)


def test_empty_batches_are_refused_before_they_become_objects(watched: Watched) -> None:
    flood = pb.ReportRequest(job="first", session="x", arrivals=[Arrivals()] * 1_000_000)
    for _ in range(40):
        watched.send(watched.stub.Report, flood, refused="LIMIT_REACHED")
    assert watched.peak_growth < DROPPED_FACTOR * watched.sent + SLACK


def test_as_many_empty_batches_as_are_taken_are_not_kept(watched: Watched) -> None:
    session = create(watched.stub, "job")
    flood = pb.ReportRequest(job="job", session=session, arrivals=[Arrivals()] * 4096)
    for _ in range(250):
        watched.send(watched.stub.Report, flood)
    assert watched.growth < DROPPED_FACTOR * watched.sent + SLACK


def test_what_nobody_knows_is_not_kept_with_a_report(watched: Watched) -> None:
    session = create(watched.stub, "job")
    batch = Arrivals(iteration=0, seconds=[1.0], workers=[0])
    known = pb.ReportRequest(job="job", session=session, arrivals=[batch]).SerializeToString()
    request = pb.ReportRequest.FromString(known + unknown_field(MIB))
    for _ in range(100):
        watched.send(watched.stub.Report, request)
    assert watched.growth < DROPPED_FACTOR * watched.sent + SLACK


def test_what_nobody_knows_is_not_kept_for_slow_watchers(watched: Watched) -> None:
    session = create(watched.stub, "job")
    watch = watched.stub.WatchJob(pb.WatchJobRequest(job="job"))
    next(watch)
    for iteration in range(64):
        whole = whole_iteration("job", session, iteration)
        large = IterationSummary.FromString(whole.summary.SerializeToString() + unknown_field(MIB))
        request = pb.EndIterationRequest(job="job", session=session, summary=large)
        watched.send(watched.stub.EndIteration, request)
    assert watched.growth < DROPPED_FACTOR * watched.sent + SLACK
    watch.cancel()


def test_memberships_are_not_kept_without_end(watched: Watched) -> None:
    workers = 2000
    session = create(watched.stub, "job", workers=workers)
    for first in range(1500):
        members = Membership(live_workers=workers, workers=range(2**28 + first, 2**28 + first + workers))
        watched.send(watched.stub.Report, pb.ReportRequest(job="job", session=session, membership=members))
    assert watched.growth < 2 * watched.sent + SLACK


def far_row(stub: ControllerServiceStub, job: str, session: str, iteration: int, k: int) -> None:
    """Report the last of 4096 arrivals: a sample after k of the iteration before."""
    batch = Arrivals(iteration=iteration, preceding=4095, seconds=[1.0])
    ended = IterationSummary(iteration=iteration, k=k, duration_seconds=1.0)
    stub.EndIteration(pb.EndIterationRequest(job=job, session=session, arrivals=[batch], summary=ended))


@pytest.mark.parametrize("policy", [Policy(), Policy(dbw_plus=DbwPlusPolicy())], ids=["dbw", "dbw-plus"])
def test_large_jobs_take_memory_for_what_they_have_sampled(watched: Watched, policy: Policy) -> None:
    jobs, workers = 10, 4096
    spec = JobSpec(policy=policy) if policy.WhichOneof("rule") else JobSpec()
    for number in range(jobs):
        name = f"job-{number}"
        session = create(watched.stub, name, spec=spec)
        grown = Membership(live_workers=workers)
        watched.stub.Report(pb.ReportRequest(job=name, session=session, membership=grown))
        for iteration in range(9):
            far_row(watched.stub, name, session, iteration, min(1 + 500 * iteration, workers))
    rows = jobs * 8 * workers * 64
    estimates = jobs * 10 * workers * 32
    assert watched.peak_growth < 2 * (rows + estimates) + SLACK


def upload(watched: Watched, job: str, session: str, state: bytes) -> None:
    """Import a state."""
    digest = hashlib.sha256(state).digest()
    header = pb.JobStateHeader(format_version=1, total_bytes=len(state), sha256=digest)
    pieces = [state[start : start + PIECE_BYTES] for start in range(0, len(state), PIECE_BYTES)]
    requests = [pb.ImportJobStateRequest(data=piece) for piece in pieces]
    requests[0].MergeFrom(pb.ImportJobStateRequest(job=job, session=session, header=header))
    watched.sent += len(state)
    watched.stub.ImportJobState(iter(requests), timeout=PATIENCE)


def state_of(stub: ControllerServiceStub, **durations: Any) -> bytes:
    """A state with these samples."""
    exported = stub.ExportJobState(pb.ExportJobStateRequest(job="first"))
    state = b"".join(piece.data for piece in exported)
    return changed(state, lambda content: content["durations"].update(durations))


def samples(workers: int, rows: range) -> dict[str, Any]:
    ones = np.ones(workers * len(rows)).tobytes()
    return {"workers": workers, "rows": list(rows), "weights": ones, "means": ones}


@pytest.mark.parametrize(
    ("workers", "rows"),
    [(1000, range(1, 1001)), (10_000, range(1, 10_000, 100)), (10_000, range(1, 10_000, 1500))],
    ids=["dense", "sparse", "few"],
)
def test_a_state_costs_a_small_multiple_of_its_size(watched: Watched, workers: int, rows: range) -> None:
    session = create(watched.stub, "job")
    state = state_of(watched.stub, **samples(workers, rows))
    for _ in range(3):
        upload(watched, "job", session, state)
    assert watched.peak_growth < STATE_FACTOR * len(state) + SLACK, "what is replaced is given back"


def test_a_state_of_very_short_numbers_is_refused_before_it_is_read(watched: Watched) -> None:
    session = create(watched.stub, "job")
    short = {"variances": [0] * 1_000_000, "squared_norms": [0] * 1_000_000, "smoothnesses": [0] * 1_000_000}
    state = changed(state_of(watched.stub), lambda content: content["gain"].update(short))
    for _ in range(10):
        with pytest.raises(grpc.RpcError) as refused:
            upload(watched, "job", session, state)
        assert reason_of(refused.value) == "STATE_DAMAGED"
    assert watched.peak_growth < DROPPED_FACTOR * watched.sent + SLACK


# Quotas


def assert_limit(error: grpc.RpcError, limit: str) -> None:
    """An rpc failed because of this limit."""
    code, reason, _, (quota, retry) = failure(error)
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
    assert [violation.subject for violation in quota.violations] == [limit]
    assert retry.retry_delay.ToNanoseconds() > 0


def test_jobs_take_no_more_memory_than_allowed() -> None:
    with controller("--max-total-bytes", str(64 * MIB)) as server, server.stub() as stub:
        watched = Watched(server, stub)
        session = create(stub, "job", workers=4096)

        def sample_every_row() -> None:
            for iteration in range(4096):  # each some hundred bytes, for a row of 256 KiB
                far_row(stub, "job", session, iteration, 1 + iteration)

        with pytest.raises(grpc.RpcError) as refused:
            sample_every_row()
        assert_limit(refused.value, "max_total_bytes")
        assert watched.peak_growth < 2 * 64 * MIB + SLACK

        with pytest.raises(grpc.RpcError) as refused:
            create(stub, "another", workers=4096)
        assert_limit(refused.value, "max_total_bytes")
        with pytest.raises(grpc.RpcError) as refused:
            upload(watched, "job", session, state_of(stub, **samples(1000, range(1, 1001))))
        assert_limit(refused.value, "max_total_bytes")

        stub.DeleteJob(pb.DeleteJobRequest(job="job"))
        create(stub, "another", workers=4096)


def test_quotas_are_of_identities(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("alice alice-token\nbob bob-token\n")
    flags = ("--max-identity-jobs", "2", "--max-identity-bytes", str(8 * MIB), "--token-file", str(tokens))

    def begin(identity: str, job: str, workers: int = 4) -> None:
        request = pb.CreateJobRequest(job=job, membership=Membership(live_workers=workers))
        stub.CreateJob(request, metadata=(("authorization", f"Bearer {identity}-token"),))

    with controller(*flags) as server, server.stub() as stub:
        begin("alice", "one")
        with pytest.raises(grpc.RpcError) as refused:
            begin("alice", "large", 4096)
        assert_limit(refused.value, "max_identity_bytes")
        begin("alice", "two")
        with pytest.raises(grpc.RpcError) as refused:
            begin("alice", "three")
        assert_limit(refused.value, "max_identity_jobs")
        begin("bob", "three")


def test_a_report_that_grows_a_job_beyond_its_share_changes_nothing() -> None:
    with controller("--max-total-bytes", str(8 * MIB)) as server, server.stub() as stub:
        session = create(stub, "job")
        grown = Membership(live_workers=4096)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Report(pb.ReportRequest(job="job", session=session, membership=grown))
        assert_limit(refused.value, "max_total_bytes")
        with pytest.raises(grpc.RpcError) as refused:
            create(stub, "job", workers=4096)
        assert_limit(refused.value, "max_total_bytes")
        assert stub.GetJob(pb.GetJobRequest(job="job")).job.membership.live_workers == 4
        assert len(train(stub, "job", session, range(5))) == 5
