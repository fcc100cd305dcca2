"""States, snapshots and reports that come to a controller. Whatever it takes must leave a job that can go on."""

import gzip
import hashlib
import json
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from dbw.v1 import controller_pb2 as pb
from dbw_controller.core.errors import (
    JobError,
    NotSupportedError,
    StateDamagedError,
    StateFormatUnknownError,
    damaged_state,
)
from dbw_controller.core.estimators.durations import Solver
from dbw_controller.core.job import Job
from dbw_controller.core.policies import POLICIES, Dbw, DbwPlus, create_policy
from dbw_controller.core.reports import Membership
from dbw_controller.core.spec import JobSpec, SyncMode
from dbw_controller.server.job_messages import job_message
from dbw_controller.server.recent_reports import RecentReports
from dbw_controller.server.saver import Disk
from dbw_controller.server.served_job import ServedJob
from dbw_controller.server.store import MAGIC, SnapshotStore
from dbw_controller.wire import messages
from dbw_controller.wire.messages import AnyReport
from dbw_controller.wire.state import export_state, import_state
from tests.fuzz.changes import changed_tree
from tests.fuzz.messages import Messages
from tests.fuzz.target import Mutate, Target
from tests.jobs import full_report

RECORDINGS = Path(__file__).parent.parent / "recordings" / "data"
NAME = "resnet"
MAX_WORKERS = 64  # of a job, as a controller may be told; it needs memory for all pairs of them
REFUSED = StateDamagedError, StateFormatUnknownError, NotSupportedError  # how a state may be
SOLVER = Solver.EXACT


def _jobs() -> list[JobSpec]:
    """Specifications of jobs that a state is given to; the first byte of an input chooses one."""
    policies = [create_policy(name, {"k": 2.0} if name == "static" else {}) for name in POLICIES]
    more = [JobSpec(DbwPlus(), sync_mode=SyncMode.PUSH_INTERRUPT), JobSpec(Dbw(), sample_half_life=4.0, k_min=2)]
    return [*map(JobSpec, policies), *more]


SPECS = _jobs()


def _trained(spec: JobSpec, iterations: int) -> Job:
    job = Job(spec, Membership(4))
    for iteration in range(iterations):
        job.report(full_report(iteration, job.decision().k, loss=2.0 - 0.1 * iteration))
    return job


def go_on(job: Job) -> None:
    """Use a job as a parameter server does, until it refuses something. What it leaves must be readable."""
    try:
        for _ in range(3):
            messages.decision_message(job.decision(), include_estimates=True)
            times = (1.0, 1.1, 1.2, 3.0)[: max(job.membership.live_workers, 1)]
            decision = job.report(full_report(job.iteration, min(job.decision().k, 4), times))
            assert decision is not None
            assert 1 <= decision.k <= max(decision.live_workers, 1), decision
    except JobError:
        pass
    Job.restore(job.snapshot(), SOLVER)
    job.adopt(job.learnt())


def run_state(data: bytes) -> None:
    """Import what another job has learnt."""
    if not data:
        return
    job = _trained(SPECS[data[0] % len(SPECS)], 2)
    header, _ = export_state(NAME, job)
    state, before = data[1:], job.snapshot()
    header.total_bytes, header.sha256 = len(state), hashlib.sha256(state).digest()
    try:
        import_state(job, header, state)
    except REFUSED:
        assert job.snapshot() == before, "what was refused has changed the job"
    else:
        go_on(job)


def state_seeds() -> Iterator[bytes]:
    """What jobs of all kinds have learnt, short after they began and later."""
    for number, spec in enumerate(SPECS):
        for iterations in (0, 1, 12):
            yield bytes([number]) + _trained(spec, iterations).learnt()
    for path in (RECORDINGS / "exports").glob("*.state"):
        yield b"\0" + pb.ExportJobStateResponse.FromString(path.read_bytes()).data
        yield b"\2" + pb.ExportJobStateResponse.FromString(path.read_bytes()).data


def mutate_packed(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change something in MessagePack, or its bytes."""
    try:
        tree = msgspec.msgpack.decode(data)
        return msgspec.msgpack.encode(changed_tree(random, tree, mutate)) if random.random() < 0.9 else mutate(data)
    except (ValueError, RecursionError, OverflowError):
        return mutate(data)


def mutate_state(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change a state, and sometimes what it is given to."""
    kind = bytes([random.randrange(len(SPECS))]) if random.random() < 0.1 else data[:1]
    return (kind or b"\0") + mutate_packed(data[1:], random, mutate)


@cache
def _store() -> SnapshotStore:
    return SnapshotStore(Path(tempfile.mkdtemp(prefix="dbw-fuzz-")))


def run_snapshot(data: bytes) -> None:
    """Restore a job from its snapshot, as a controller does that starts."""
    store, disk = _store(), Disk(None, 100)
    store._path(NAME).write_bytes(data)
    try:
        served = ServedJob.restore(NAME, store.read(NAME), SOLVER, disk)
        with damaged_state():
            job_message(served, include_estimates=True)
    except REFUSED:
        return
    go_on(served.job)
    job_message(served, include_estimates=True)
    ServedJob.restore(NAME, served.snapshot(), SOLVER, disk)


def snapshot_seeds() -> Iterator[bytes]:
    """Snapshots of earlier versions, and of now."""
    for path in (RECORDINGS / "snapshots").glob("*.job"):
        yield path.read_bytes().replace(_packed_name(path.stem), _packed_name(NAME))
    for spec in SPECS:
        data = ServedJob(NAME, "alice", _trained(spec, 3), Disk(None, 100)).snapshot()
        yield MAGIC + hashlib.sha256(data).digest() + data


def _packed_name(name: str) -> bytes:
    encoded: bytes = msgspec.msgpack.encode({"name": name})[1:]
    return encoded


def mutate_snapshot(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change a snapshot behind its digest, mostly."""
    if random.random() < 0.05:
        return mutate(data)
    packed = mutate_packed(data[len(MAGIC) + 32 :], random, mutate)
    return MAGIC + hashlib.sha256(packed).digest() + packed


REQUESTS: tuple[type[Message], ...] = (
    pb.CreateJobRequest,
    pb.CoordinateRequest,
    pb.EndIterationRequest,
    pb.ReportRequest,
)


@cache
def _restorable() -> bytes:
    return _trained(JobSpec(DbwPlus()), 3).snapshot()


def run_request(data: bytes) -> None:
    """Take in a request of a parameter server, as the service does; the first byte says which rpc's."""
    if not data:
        return
    try:
        request: Any = REQUESTS[data[0] % len(REQUESTS)].FromString(data[1:])
    except DecodeError:
        return
    if max(request.membership.live_workers, len(request.membership.workers)) > MAX_WORKERS:
        return
    try:
        if isinstance(request, pb.CreateJobRequest):
            spec = messages.spec_from(request.spec, Dbw())
            membership = messages.membership_from(request.membership)
            job = Job(spec, membership, request.iteration if request.HasField("iteration") else None)
            messages.spec_message(job.spec)
        else:
            job = _reported(request)
    except JobError:
        return
    go_on(job)


def _reported(request: AnyReport) -> Job:
    """A job that a report was given to."""
    job, recent = Job.restore(_restorable(), SOLVER), RecentReports()
    for report in [messages.report_from(part) for part in messages.one_by_one(request)]:
        before = job.decision()
        decision = job.report(report)
        recent.add(report, before, decision, job.membership)
        job.catch_up()
    findings = recent.diagnose(job.spec.sync_mode).findings()
    for finding in findings:
        messages.finding_message(finding)
    return job


def request_seeds() -> Iterator[bytes]:
    """The first requests of some recorded conversations."""
    for path in sorted((RECORDINGS / "conversations").glob("*.jsonl.gz"))[::4]:
        with gzip.open(path, "rt") as file:
            _, *steps = [json.loads(line) for line in file.readlines()[:8]]
        for step in steps:
            kinds = [kind for kind in REQUESTS if kind.DESCRIPTOR.name == f"{step.get('rpc')}Request"]
            for kind in kinds:
                for content in step.get("requests", [step.get("request")])[:3]:
                    encoded = ParseDict(content, kind()).SerializeToString()
                    yield bytes([REQUESTS.index(kind)]) + encoded


def mutate_request(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change fields of a request."""
    number = data[0] if data else random.randrange(len(REQUESTS))
    kind, known = REQUESTS[number % len(REQUESTS)], {"iteration": range(6), "k": range(1, 5), "workers": range(4)}
    generator = Messages(random, known)
    try:
        message = kind.FromString(data[1:])
    except DecodeError:
        message = generator.message(kind)
    for _ in range(random.randint(1, 3)):
        generator.change(message)
    return bytes([number]) + (generator.encoded(message) if random.random() < 0.9 else mutate(data[1:]))


TARGETS = {
    "states": Target(run_state, state_seeds, mutate_state, short_runs=300),
    "snapshots": Target(run_snapshot, snapshot_seeds, mutate_snapshot, short_runs=300),
    "requests": Target(run_request, request_seeds, mutate_request, short_runs=500),
}
