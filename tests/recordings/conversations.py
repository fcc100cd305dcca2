"""What is played to the controller, and recorded: each function is a conversation, named after what it covers."""

import math
from collections.abc import Callable
from typing import Any

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import Arrivals, IterationSummary, Membership
from dbw.v1.job_pb2 import (
    UNSAMPLED_DURATION_LOWER,
    UNSAMPLED_DURATION_MIDPOINT,
    AdaSyncPolicy,
    BlindDbwPolicy,
    CustomPolicy,
    DbwPlusPolicy,
    DbwPolicy,
    Estimation,
    JobSpec,
    Policy,
    StaticPolicy,
    SyncPolicy,
)
from dbw.v1.sync_mode_pb2 import SYNC_MODE_PULL, SYNC_MODE_PUSH_INTERRUPT, SYNC_MODE_PUSH_WAIT
from tests.recordings.simulation import RoundTrips, exponential, slowdown, steady, two_slow
from tests.recordings.training import Recorder, Training, streamed

Conversation = Callable[[Recorder, str], None]

WAIT, INTERRUPT, PULL = SYNC_MODE_PUSH_WAIT, SYNC_MODE_PUSH_INTERRUPT, SYNC_MODE_PULL
DBW = Policy(dbw=DbwPolicy())
BLIND = Policy(blind_dbw=BlindDbwPolicy())
PLUS = Policy(dbw_plus=DbwPlusPolicy())
PLUS_WITHOUT_DEADLINES = Policy(dbw_plus=DbwPlusPolicy(deadlines=False))
STATIC = Policy(static=StaticPolicy(k=3))
SYNC = Policy(sync=SyncPolicy())
ADASYNC = Policy(adasync=AdaSyncPolicy(initial_k=2))


def spec(policy: Policy, mode: Any = WAIT, estimation: Estimation | None = None, **bounds: int) -> JobSpec:
    """A specification."""
    return JobSpec(policy=policy, sync_mode=mode, estimation=estimation, **bounds)


def training(
    of: JobSpec, workers: int, round_trips: RoundTrips = exponential, iterations: int = 40, **more: Any
) -> Conversation:
    """A conversation: one training."""

    def play(wire: Recorder, name: str) -> None:
        """A training in which everything goes well."""
        job = Training(wire, name, of, workers, round_trips, **more)
        job.create()
        job.train(iterations)
        job.end()

    return play


def late_and_lossy(wire: Recorder, name: str) -> None:
    """Gradients are lost, iterations end early, and learning rates change."""
    for policy, suffix in ((DBW, "dbw"), (PLUS, "plus"), (SYNC, "sync")):
        job = Training(wire, f"{name}-{suffix}", spec(policy), 6, two_slow, streaming=False)
        job.cluster.loss_probability, job.cluster.max_wait = 0.2, 4.0
        job.create()
        job.train(15)
        job.descent.rate = 0.03
        job.train(8)
        job.train(4, learning_rate=0.01, effective_learning_rate=0.1)
        job.train(3, published_seconds=None)
        job.train(3, effective_learning_rate=0.2, learning_rate=None)
        job.end()


def without_late_arrivals(wire: Recorder, name: str) -> None:
    """A parameter server that never tells of late workers, until it is noticed and after it, and far beyond."""
    for policy, suffix in ((DBW, "dbw"), (PLUS, "plus")):
        job = Training(wire, f"{name}-{suffix}", spec(policy, k_max=2), 3, steady, noise=0.1)
        job.create()
        for iteration in range(112):
            request = job.observe()
            late = [batch for batch in request.arrivals if batch.iteration < iteration]
            for batch in late if iteration < 108 else ():
                request.arrivals.remove(batch)
            job.tell(request)
            if iteration == 107:
                job.look()
        wire.refused("GetDecision", job.get_decision(10))
        wire.call("GetDecision", job.get_decision(60))
        job.end()


def stalled(wire: Recorder, name: str) -> None:
    """The loss falls no more, grows, and falls again."""
    for policy, suffix in ((DBW, "dbw"), (PLUS, "plus"), (ADASYNC, "adasync")):
        job = Training(wire, f"{name}-{suffix}", spec(policy), 4, noise=4.0, floor=2.0, streaming=False)
        job.create()
        for iteration in range(60 if policy is PLUS else 15):  # DBW+ gets more cautious after 50
            job.train(1, loss=2.5 + 0.04 * (iteration % 5))
        for loss in (2.6, 2.7, 2.75, 3.0, 1.5, 1.2, 1.0, 0.5, 0.4, 0.3):
            job.train(1, loss=loss)
        job.train(1, loss=-0.5)
        job.train(1, loss=-0.4)
        job.train(1, loss=0.0)
        job.end()


def single_gradients(wire: Recorder, name: str) -> None:
    """One worker is so much faster that k is 1, which tells no variance: now and then another k is tried."""
    job = Training(wire, name, spec(PLUS), 5, lambda rng, w, t: 0.1 if w == 0 else exponential(rng, w, t), noise=0.01)
    job.create()
    job.train(48)
    job.descent.parts = 4
    job.train(6)
    job.end()


def workers_come_and_go(wire: Recorder, name: str) -> None:
    """Membership with the workers' numbers: fewer, more, none, others; beside a summary and in a report of its own."""
    for policy, mode, suffix in ((PLUS, WAIT, "plus"), (PLUS, INTERRUPT, "plus-interrupt"), (DBW, WAIT, "dbw")):
        job = Training(wire, f"{name}-{suffix}", spec(policy, mode), 8, two_slow, streaming=suffix != "plus")
        job.create()
        job.train(8)
        job.cluster.leave(2, 5)
        job.train(6)
        job.cluster.join(2, 20, 21, 22, 23)
        report_membership(job)
        job.train(6)
        job.cluster.leave(*job.cluster.workers)
        report_membership(job)
        job.wire.call("GetJob", pb.GetJobRequest(job=job.job))
        job.cluster.join(0, 1, 30)
        report_membership(job)
        job.train(8)
        request = job.observe()
        job.cluster.leave(0, 1, 30)
        assert job.tell(request).k == 1, "nobody is alive"
        job.cluster.join(0, 1, 2, 3, 4, 5)
        job.train(6)
        job.end()


def report_membership(job: Training) -> None:
    """Tell at once who is alive."""
    report = pb.ReportRequest(membership=job.membership())
    job.address(report)
    job.wire.call("Report", report)


def workers_without_numbers_come_and_go(wire: Recorder, name: str) -> None:
    """Only the number of workers is told, and arrivals do not say whose they are."""
    for policy, suffix in ((PLUS, "plus"), (DBW, "dbw"), (BLIND, "blind")):
        job = Training(wire, f"{name}-{suffix}", spec(policy), 6, numbered=False, streaming=suffix == "dbw")
        job.create()
        job.train(10)
        job.cluster.leave(0, 3)
        job.train(6)
        job.cluster.join(0, 3, 6, 7, 8)
        job.train(8)
        job.cluster.leave(*job.cluster.workers)
        report_membership(job)
        job.cluster.join(*range(5))
        job.train(6)
        job.end()


def numbers_only_sometimes(wire: Recorder, name: str) -> None:
    """Membership without numbers and arrivals with them, then arrivals without; then arrivals of strangers."""
    job = Training(wire, name, spec(PLUS), 5, two_slow)
    job.numbered = False
    job.create()
    job.numbered = True
    job.train(8)
    for _ in range(6):
        request = job.observe()
        request.membership.CopyFrom(Membership(live_workers=5))
        for batch in request.arrivals:
            batch.ClearField("workers")
        job.tell(request)
    for _ in range(6):
        request = job.observe()
        for batch in request.arrivals:
            batch.workers[:] = [worker + 100 * (worker == 4) for worker in batch.workers]
        job.tell(request)
    job.train(4)
    job.end()


def repeated_reports(wire: Recorder, name: str) -> None:
    """Every report may be repeated, by whichever rpc, and arrivals may be told twice: nothing counts twice."""
    for policy, suffix in ((PLUS, "plus"), (DBW, "dbw")):
        job = Training(wire, f"{name}-{suffix}", spec(policy), 6, two_slow, streaming=False)
        job.create()
        for iteration in range(24):
            request = job.observe()
            job.tell(request)
            if iteration % 3 == 0:
                first = job.decision
                assert job.tell(request) == first
            if iteration % 5 == 0:
                again = pb.ReportRequest(arrivals=request.arrivals)
                job.address(again)
                job.wire.call("Report", again)
            if iteration % 4 == 1:
                other = pb.EndIterationRequest(summary=request.summary)
                other.summary.loss = 77.0  # it is too late for that
                job.tell(other)
            if iteration % 7 == 2:
                late = pb.EndIterationRequest(summary=request.summary, membership=job.membership())
                late.arrivals.add(iteration=iteration, preceding=5, seconds=[30.0], workers=[0])
                job.tell(late)
        job.end()


def arrivals_in_parts(wire: Recorder, name: str) -> None:
    """Arrivals come one by one, in parts that overlap, out of order, before or after their iteration's summary."""
    for policy, streaming, suffix in ((PLUS, True, "plus"), (DBW, False, "dbw"), (BLIND, True, "blind")):
        job = Training(wire, f"{name}-{suffix}", spec(policy), 7, two_slow, streaming=streaming)
        job.create()
        withheld: list[Arrivals] = []
        for iteration in range(24):
            request = job.observe()
            parts = [part for batch in request.arrivals for part in in_parts(batch, 1 + iteration % 3)]
            del request.arrivals[:]
            if iteration % 4 == 3:
                parts.reverse()
            request.arrivals.extend(withheld)
            withheld = parts[-1:] if iteration % 5 == 2 else []
            if iteration % 6 == 4:
                request.arrivals.extend(parts)
                job.tell(request)
            else:
                job.tell(request, *(pb.ReportRequest(arrivals=[part, part]) for part in parts if part not in withheld))
        job.end()


def in_parts(batch: Arrivals, rows: int) -> list[Arrivals]:
    """The same arrivals in several messages; each repeats the last row of the one before."""
    parts = []
    for begin in range(0, len(batch.seconds), rows):
        first = max(begin - 1, 0)
        seconds, workers = batch.seconds[first : begin + rows], batch.workers[first : begin + rows]
        preceding = batch.preceding + first
        parts.append(Arrivals(iteration=batch.iteration, preceding=preceding, seconds=seconds, workers=workers))
    return parts


def more_arrivals_than_workers(wire: Recorder, name: str) -> None:
    """Some workers send two gradients of the same iteration: there are more arrivals than the membership tells of."""
    for policy, suffix in ((PLUS, "plus"), (DBW, "dbw")):
        job = Training(wire, f"{name}-{suffix}", spec(policy, PULL), 4, two_slow)
        job.create()
        for iteration in range(20):
            request = job.observe()
            batch = request.arrivals[-1]
            for extra in range(iteration % 5):
                batch.seconds.append(batch.seconds[-1] + 0.25)
                batch.workers.append(extra)
            request.arrivals.add(iteration=iteration + 2, seconds=[0.5], workers=[9])  # which has not begun
            job.tell(request)
        job.end()


def lost_summaries(wire: Recorder, name: str) -> None:
    """Summaries get lost, with their arrivals or without; the next ones tell k of the iteration before, or do not."""
    for policy, suffix in ((PLUS, "plus"), (DBW, "dbw"), (BLIND, "blind")):
        job = Training(wire, f"{name}-{suffix}", spec(policy), 6, two_slow, streaming=False)
        job.create()
        job.train(8)
        for iteration in range(20):
            lost = job.skip() if iteration % 3 == 0 else None
            request = job.observe()
            request.summary.fallback = lost is not None
            if lost is not None and iteration % 2 == 0:
                request.summary.previous_k = lost.summary.k
            if lost is not None and iteration % 4 == 0:
                early = list(lost.arrivals)
                early.extend(request.arrivals)
                del request.arrivals[:]
                request.arrivals.extend(early)
            job.tell(request)
        for _ in range(3):
            job.skip()
        job.train(4, previous_k=2)
        job.iteration += 2000  # far beyond what is remembered
        job.cluster.begin_anew()
        request = job.observe()
        request.arrivals.add(iteration=3, seconds=[9.0], workers=[1], preceding=5)
        job.tell(request)
        job.train(5)
        job.end()


def missing_values(wire: Recorder, name: str) -> None:
    """Summaries lack the loss, the learning rate, the moments or their spread, in turn and all together."""
    for policy, suffix in ((PLUS, "plus"), (DBW, "dbw"), (ADASYNC, "adasync"), (BLIND, "blind")):
        job = Training(wire, f"{name}-{suffix}", spec(policy), 4, streaming=False)
        job.create()
        job.train(3, loss=None, learning_rate=None, moments=None)
        job.train(5)
        for field in ("loss", "learning_rate", "moments", "published_seconds", "end_cause"):
            job.train(2, **{field: None})
            job.train(1)
        for _ in range(3):
            request = job.observe()
            request.summary.moments.ClearField("spread")
            job.tell(request)
        for _ in range(5):
            request = job.observe()
            request.summary.moments.variance = 1.25
            job.tell(request)
        job.end()


def numbers_that_are_not_finite(wire: Recorder, name: str) -> None:
    """Losses, learning rates and moments that are not finite or make no sense: they are left out."""
    for policy, suffix in ((PLUS, "plus"), (DBW, "dbw"), (ADASYNC, "adasync")):
        job = Training(wire, f"{name}-{suffix}", spec(policy), 4, streaming=False)
        job.create()
        job.train(1, loss=math.nan)
        job.train(6)
        for value in (math.nan, math.inf, -math.inf):
            job.train(1, loss=value)
            job.train(1, learning_rate=value)
            job.train(1, published_seconds=value)
            for name_of in ("mean_squared_norm", "sum_squared_norms", "variance"):
                request = job.observe()
                setattr(request.summary.moments, name_of, value)
                job.tell(request)
            job.train(1)
        for value in (-1.0, 0.0, 1e308):
            job.train(1, learning_rate=value)
            request = job.observe()
            request.summary.moments.mean_squared_norm = value
            job.tell(request)
        for variance in (math.nan, -1.0, 0.5):
            request = job.observe()
            request.summary.moments.within_worker.variance = variance
            request.summary.moments.within_worker.degrees_of_freedom = 3
            job.tell(request)
        job.train(3)
        job.end()


def refused_requests(wire: Recorder, name: str) -> None:
    """What is refused, and why; nothing changes by it."""
    job = Training(wire, name, spec(PLUS, k_max=3), 4)
    job.create()
    job.train(6)
    job.wire.do("hang up")
    for change in REFUSED_SPECS:
        asked = pb.CreateJobRequest(
            job=f"{name}-other", spec=change, membership=Membership(live_workers=2), iteration=0
        )
        wire.refused("CreateJob", asked)
    wire.refused("CreateJob", pb.CreateJobRequest(job=name, iteration=0))
    for other in ("", "-x", "a b", "x" * 129):
        wire.refused("CreateJob", pb.CreateJobRequest(job=other, membership=Membership(live_workers=2)))
    for membership in REFUSED_MEMBERSHIPS:
        wire.refused("CreateJob", pb.CreateJobRequest(job=name, membership=membership, spec=job.spec))
        report = pb.ReportRequest(membership=membership)
        job.address(report)
        wire.refused("Report", report)
    wire.refused("CreateJob", pb.CreateJobRequest(job=name, membership=job.membership(), spec=spec(DBW)))
    wire.refused("CreateJob", pb.CreateJobRequest(job=name, membership=job.membership(), iteration=2**63))
    for arrivals in REFUSED_ARRIVALS:
        request = pb.EndIterationRequest(arrivals=[Arrivals(iteration=6, seconds=[1.0], workers=[0]), arrivals])
        request.summary.CopyFrom(IterationSummary(iteration=6, k=2, duration_seconds=1.0))
        job.address(request)
        wire.refused("EndIteration", request)
    for summary in REFUSED_SUMMARIES:
        request = pb.EndIterationRequest(summary=summary)
        job.address(request)
        wire.refused("EndIteration", request)
        stream_request = pb.CoordinateRequest(summary=summary)
        job.address(stream_request)
        wire.refused("Coordinate", stream_request)
    wire.refused("EndIteration", pb.EndIterationRequest(job=name, session=job.session))
    wire.refused("Report", pb.ReportRequest(job=name, session=job.session, arrivals=[Arrivals()] * MANY))
    for session in ("", "another", f"{job.session}0"):
        wire.refused("Report", pb.ReportRequest(job=name, session=session))
    wire.refused("Report", pb.ReportRequest(job=f"{name}-none", session=job.session))
    wire.refused("GetJob", pb.GetJobRequest(job=f"{name}-none"))
    wire.refused("DiagnoseJob", pb.DiagnoseJobRequest(job=f"{name}-none"))
    wire.refused("ExportJobState", pb.ExportJobStateRequest(job=f"{name}-none"), keep="none")
    wire.refused("WatchJob", pb.WatchJobRequest(job=f"{name}-none"))
    wire.refused("DeleteJob", pb.DeleteJobRequest(job=f"{name}-none"))
    wire.call("DeleteJob", pb.DeleteJobRequest(job=f"{name}-none", allow_missing=True))
    wire.refused("GetDecision", job.get_decision(7))
    wire.refused("GetDecision", job.get_decision(2**63))
    request = job.observe()
    job.address(request)
    elsewhere = pb.CoordinateRequest(job=f"{name}-none", session=job.session)
    wire.refused("Coordinate", streamed(request), elsewhere)
    job.tell(request)
    job.train(6)
    job.end()


REFUSED_SPECS = (
    JobSpec(policy=Policy()),
    JobSpec(policy=DBW, k_min=0),
    JobSpec(policy=DBW, k_min=4, k_max=3),
    JobSpec(policy=DBW, k_max=0),
    JobSpec(policy=DBW, estimation=Estimation(averaging_window=0)),
    JobSpec(policy=DBW, estimation=Estimation(sample_half_life_iterations=0.0)),
    JobSpec(policy=DBW, estimation=Estimation(sample_half_life_iterations=math.nan)),
    JobSpec(policy=DBW, estimation=Estimation(unsampled_duration=7)),  # type: ignore[arg-type] # nobody's
    JobSpec(policy=DBW, sync_mode=9),  # type: ignore[arg-type] # nobody's
    JobSpec(policy=Policy(static=StaticPolicy(k=0))),
    JobSpec(policy=Policy(static=StaticPolicy())),
    JobSpec(policy=Policy(adasync=AdaSyncPolicy(initial_k=0))),
    JobSpec(policy=Policy(dbw=DbwPolicy(loss_increase_factor=0.9))),
    JobSpec(policy=Policy(blind_dbw=BlindDbwPolicy(loss_increase_factor=math.inf))),
    JobSpec(policy=Policy(custom=CustomPolicy(name="nobody's"))),
    JobSpec(policy=Policy(custom=CustomPolicy(name="static", parameters={"k": 2.5}))),
    JobSpec(policy=Policy(custom=CustomPolicy(name="sync", parameters={"k": 2.0}))),
)
REFUSED_MEMBERSHIPS = (
    Membership(live_workers=3, workers=[1, 2]),
    Membership(live_workers=2, workers=[1, 1]),
    Membership(live_workers=5000),
)
REFUSED_ARRIVALS = (
    Arrivals(iteration=6, seconds=[0.5, -0.1]),
    Arrivals(iteration=6, seconds=[math.nan]),
    Arrivals(iteration=6, seconds=[math.inf]),
    Arrivals(iteration=6, seconds=[1e13]),
    Arrivals(iteration=6, seconds=[0.5, 0.6], workers=[1]),
    Arrivals(iteration=2**63, seconds=[0.5]),
)
MANY = 4097  # messages of arrivals in one report
REFUSED_SUMMARIES = (
    IterationSummary(iteration=4, k=2, duration_seconds=1.0),  # it ended before the last one
    IterationSummary(iteration=0, k=2, duration_seconds=1.0),
    IterationSummary(iteration=6, k=0, duration_seconds=1.0),
    IterationSummary(iteration=6, k=20_000, duration_seconds=1.0),
    IterationSummary(iteration=6, k=2, duration_seconds=-1.0),
    IterationSummary(iteration=6, k=2, duration_seconds=math.nan),
    IterationSummary(iteration=6, k=2, duration_seconds=1.0, previous_k=0),
    IterationSummary(iteration=6, k=2, duration_seconds=1.0, lost_gradients=20_000),
    IterationSummary(iteration=6, k=2, duration_seconds=1.0, end_cause=9),  # type: ignore[arg-type] # nobody's
    IterationSummary(iteration=2**63, k=2, duration_seconds=1.0),
)


def attached_again(policy: Policy, mode: Any, streaming: bool) -> Conversation:
    """A conversation about re-attachment."""

    def play(wire: Recorder, name: str) -> None:
        """The parameter server attaches again: in the middle, at an earlier iteration, at a later one, and at 0."""
        job = Training(wire, name, spec(policy, mode), 6, two_slow, streaming=streaming)
        job.create()
        job.train(12)
        former = pb.ReportRequest(job=name, session=job.session)
        wire.do("hang up")
        job.create(iteration=None)
        wire.refused("Report", former)
        job.train(5)
        wire.do("hang up")
        job.cluster.leave(3)
        job.create(iteration=None)  # with fewer workers
        job.train(3)
        wire.do("hang up")
        job.create(iteration=14)  # back to a checkpoint
        wire.refused("GetDecision", job.get_decision(16))
        job.train(6)
        wire.do("hang up")
        job.cluster.join(3, 4, 5, 6, 7)
        job.create(iteration=30)
        job.train(4)
        wire.do("hang up")
        job.create(iteration=0)  # another training
        wire.refused("GetDecision", job.get_decision(1))
        job.train(8)
        job.wire.call("GetDecision", job.get_decision(3))
        job.end()

    return play


def attached_while_a_stream_is_open(wire: Recorder, name: str) -> None:
    """Another process takes a job over: the stream of the one before ends with its next report."""
    job = Training(wire, name, spec(DBW), 4)
    job.create()
    job.train(5)
    job.create(iteration=None)
    old = streamed(job.observe())
    old.job, old.session = name, "$1"
    wire.refused("Coordinate", old)
    job.iteration -= 1
    job.train(5)
    job.end()


def imported(source: JobSpec, target: JobSpec, workers: int = 6) -> Conversation:
    """A conversation about exported states."""

    def play(wire: Recorder, name: str) -> None:
        """What one job has learnt is exported and imported into another one, at its beginning and in its middle."""
        teacher = Training(wire, f"{name}-teacher", source, 6, two_slow, streaming=False)
        teacher.create()
        teacher.train(16)
        wire.call("ExportJobState", pb.ExportJobStateRequest(job=teacher.job), keep="early")
        teacher.train(9)
        wire.call("ExportJobState", pb.ExportJobStateRequest(job=teacher.job), keep="late")
        teacher.train(3)  # to export changes nothing
        pupil = Training(wire, f"{name}-pupil", target, workers, two_slow, seed=2, streaming=False)
        pupil.create()
        import_state(pupil, "early")
        pupil.train(8)
        for damage in ("cut", "flipped", "newer", "no header"):
            request = pb.ImportJobStateRequest(job=pupil.job, session=pupil.session)
            wire.refused("ImportJobState", request, state="late", damage=damage)
        wire.refused("ImportJobState", pb.ImportJobStateRequest(job=pupil.job, session="none"), state="late")
        import_state(pupil, "late")
        pupil.train(8)
        import_state(teacher, "early")
        teacher.train(4)
        pupil.end()
        teacher.end()

    return play


def import_state(job: Training, state: str) -> None:
    """Import a state, and take over the decision for the iteration under way."""
    request = pb.ImportJobStateRequest(job=job.job, session=job.session)
    job.wire.call("ImportJobState", request, state=state)
    job.decision = job.wire.call("GetDecision", job.get_decision()).decision


def restarted(*specs: JobSpec) -> Conversation:
    """A conversation with restarts."""

    def play(wire: Recorder, name: str) -> None:
        """The controller is restarted from its folder, twice: training goes on in the middle, and at a checkpoint."""
        jobs = [
            Training(wire, f"{name}-{number}", of, 6, two_slow, seed=number, streaming=False)
            for number, of in enumerate(specs)
        ]
        for job in jobs:
            job.create()
            job.train(10 + len(job.job) % 3)
        wire.do("restart")
        for job in jobs:
            wire.call("GetDecision", job.get_decision())
            wire.call("GetDecision", job.get_decision(5))
            request = job.observe()
            job.address(request)
            wire.refused("EndIteration", request)  # its session is not known any more
            job.create(iteration=None)
            job.tell(request)
            job.train(9)
        wire.do("restart")
        for job in jobs:
            job.create(iteration=max(job.iteration - 4, 0))
            job.train(8)
        for job in jobs:
            job.end()

    return play


def restarted_between_reports(wire: Recorder, name: str) -> None:
    """The controller is restarted while arrivals wait for their summary, and while nobody is alive."""
    jobs, waiting = [], []
    for policy, suffix in ((PLUS, "plus"), (DBW, "dbw")):
        job = Training(wire, f"{name}-{suffix}", spec(policy), 5, two_slow, streaming=False)
        job.create()
        job.train(9)
        job.skip()
        request = job.observe()
        report = pb.ReportRequest(arrivals=request.arrivals)
        job.address(report)
        wire.call("Report", report)
        jobs.append(job)
        waiting.append(request)
    wire.do("restart")
    for job, request in zip(jobs, waiting, strict=True):
        job.create(iteration=None)
        request.summary.previous_k = 3
        job.tell(request)
        job.train(4)
        job.cluster.leave(*job.cluster.workers)
        report_membership(job)
    wire.do("restart")
    for job in jobs:
        job.cluster.join(*range(7))
        job.create(iteration=None)
        job.train(6)
        job.end()


def watched_and_listed(wire: Recorder, name: str) -> None:
    """A job is watched, and jobs are listed in pages."""
    job = Training(wire, f"{name}-a", spec(PLUS, INTERRUPT), 4, streaming=False)
    job.create()
    for suffix in "bcd":
        Training(wire, f"{name}-{suffix}", spec(SYNC), 2).create()
    wire.call("WatchJob", pb.WatchJobRequest(job=job.job, include_estimates=True))
    for _ in range(8):
        job.train(1)
        wire.call("WatchJob")
    wire.call("ListJobs", pb.ListJobsRequest(page_size=2))
    wire.call("ListJobs", pb.ListJobsRequest(page_size=3, page_token=f"{name}-b"))
    job.end()
    for suffix in "bcd":
        wire.call("DeleteJob", pb.DeleteJobRequest(job=f"{name}-{suffix}"))


def default_and_custom_policies(wire: Recorder, name: str) -> None:
    """Jobs that name no policy, or one as a custom one; that begin in the middle of training, or without workers."""
    job = Training(wire, f"{name}-default", JobSpec(), 4, streaming=False)
    job.create()
    job.train(6)
    job.spec = spec(DBW)
    job.create(iteration=None)
    job.train(4)
    job.end()
    custom = Policy(custom=CustomPolicy(name="static", parameters={"k": 2.0}))
    job = Training(wire, f"{name}-custom", JobSpec(policy=custom), 4, streaming=False)
    job.create()
    job.train(4)
    job.end()
    for policy, suffix in ((DBW, "dbw"), (PLUS, "plus")):
        job = Training(wire, f"{name}-{suffix}", spec(policy), 4, streaming=False)
        job.create(iteration=None)
        job.iteration = 50
        job.train(8)
        job.end()
        job = Training(wire, f"{name}-{suffix}-empty", spec(policy), 0, streaming=False)
        job.create()
        job.cluster.join(0, 1, 2)
        job.train(8)
        job.end()


LOWER, MIDPOINT = UNSAMPLED_DURATION_LOWER, UNSAMPLED_DURATION_MIDPOINT
SHORT = Estimation(averaging_window=1, sample_half_life_iterations=4.0, unsampled_duration=LOWER)
LONG = Estimation(averaging_window=12, sample_half_life_iterations=20.0, unsampled_duration=MIDPOINT)
# So short that weights have to be scaled down again and again.
SHORTEST = Estimation(sample_half_life_iterations=0.05)
EAGER = Policy(dbw=DbwPolicy(loss_increase_factor=1.0))

CONVERSATIONS: dict[str, Conversation] = {
    "dbw-push-wait-16-workers-two-slow": training(spec(DBW), 16, two_slow),
    "dbw-push-interrupt-4-workers": training(spec(DBW, INTERRUPT), 4, streaming=False),
    "dbw-pull-16-workers-slowdown": training(spec(DBW, PULL), 16, slowdown),
    "dbw-40-workers-half-life": training(spec(DBW, WAIT, LONG), 40, slowdown, iterations=30),
    "dbw-70-workers": training(spec(DBW, INTERRUPT), 70, iterations=8),
    "dbw-one-worker": training(spec(DBW), 1, iterations=25),
    "dbw-one-worker-with-parts-of-mini-batches": training(spec(DBW), 1, iterations=25, parts=4),
    "dbw-any-increase-of-the-loss": training(spec(EAGER), 6),
    "dbw-bounds-window-of-1-and-lower-durations": training(spec(DBW, WAIT, SHORT, k_min=4, k_max=7), 12, two_slow),
    "dbw-shortest-half-life": training(spec(DBW, WAIT, SHORTEST), 6, iterations=60),
    "blind-dbw-push-wait-16-workers": training(spec(BLIND), 16, two_slow),
    "blind-dbw-pull-4-workers-lower-durations": training(
        spec(BLIND, PULL, Estimation(unsampled_duration=LOWER)), 4, streaming=False
    ),
    "blind-dbw-push-interrupt-16-workers": training(spec(BLIND, INTERRUPT), 16, slowdown, iterations=30),
    "dbw-plus-push-wait-16-workers-two-slow": training(spec(PLUS), 16, two_slow, noise=1.0),
    "dbw-plus-push-wait-16-workers-slowdown": training(spec(PLUS), 16, slowdown, noise=20.0),
    "dbw-plus-push-interrupt-16-workers-slowdown": training(spec(PLUS, INTERRUPT), 16, slowdown, noise=20.0),
    "dbw-plus-pull-16-workers-two-slow": training(spec(PLUS, PULL), 16, two_slow, noise=40.0, streaming=False),
    "dbw-plus-without-deadlines-push-wait-16-workers": training(spec(PLUS_WITHOUT_DEADLINES), 16, two_slow, noise=40.0),
    "dbw-plus-without-deadlines-push-interrupt-40-workers": training(
        spec(PLUS_WITHOUT_DEADLINES, INTERRUPT), 40, two_slow, iterations=30, noise=80.0
    ),
    "dbw-plus-push-wait-40-workers-slowdown": training(spec(PLUS), 40, slowdown, iterations=30, noise=80.0),
    "dbw-plus-one-worker": training(spec(PLUS), 1, iterations=25),
    "dbw-plus-bounds": training(spec(PLUS, WAIT, LONG, k_min=3, k_max=5), 8, two_slow, noise=40.0, iterations=30),
    "dbw-plus-parts-of-mini-batches": training(spec(PLUS), 6, parts=4, noise=40.0, iterations=30),
    "static-push-wait-4-workers": training(spec(STATIC), 4, iterations=25),
    "static-more-than-there-are-pull": training(spec(Policy(static=StaticPolicy(k=9)), PULL), 4, iterations=25),
    "sync-push-interrupt-16-workers": training(spec(SYNC, INTERRUPT), 16, iterations=25, streaming=False),
    "adasync-push-wait-16-workers": training(spec(ADASYNC), 16, rate=0.3),
    "adasync-pull-4-workers": training(spec(Policy(adasync=AdaSyncPolicy()), PULL), 4, rate=0.3, streaming=False),
    "late-and-lossy": late_and_lossy,
    "without-late-arrivals": without_late_arrivals,
    "stalled": stalled,
    "single-gradients": single_gradients,
    "workers-come-and-go": workers_come_and_go,
    "workers-without-numbers-come-and-go": workers_without_numbers_come_and_go,
    "numbers-only-sometimes": numbers_only_sometimes,
    "repeated-reports": repeated_reports,
    "arrivals-in-parts": arrivals_in_parts,
    "more-arrivals-than-workers": more_arrivals_than_workers,
    "lost-summaries": lost_summaries,
    "missing-values": missing_values,
    "numbers-that-are-not-finite": numbers_that_are_not_finite,
    "refused-requests": refused_requests,
    "attached-again-dbw": attached_again(DBW, WAIT, streaming=True),
    "attached-again-dbw-plus": attached_again(PLUS, WAIT, streaming=False),
    "attached-again-dbw-plus-push-interrupt": attached_again(PLUS, INTERRUPT, streaming=True),
    "attached-while-a-stream-is-open": attached_while_a_stream_is_open,
    "imported-dbw-into-dbw": imported(spec(DBW), spec(DBW)),
    "imported-dbw-plus-into-dbw-plus": imported(spec(PLUS), spec(PLUS), workers=9),
    "imported-dbw-into-dbw-plus": imported(spec(DBW), spec(PLUS)),
    "imported-dbw-plus-into-dbw": imported(spec(PLUS), spec(DBW, WAIT, SHORT), workers=4),
    "imported-dbw-plus-into-another-sync-mode": imported(spec(PLUS), spec(PLUS, INTERRUPT)),
    "watched-and-listed": watched_and_listed,
    "default-and-custom-policies": default_and_custom_policies,
}
# These have a controller of their own.
WITH_RESTARTS: dict[str, Conversation] = {
    "restarted-dbw-plus": restarted(spec(PLUS), spec(PLUS, INTERRUPT), spec(PLUS_WITHOUT_DEADLINES, PULL)),
    "restarted-other-policies": restarted(
        spec(DBW), spec(DBW, INTERRUPT, SHORT), spec(BLIND, PULL), spec(STATIC), spec(SYNC, INTERRUPT), spec(ADASYNC)
    ),
    "restarted-between-reports": restarted_between_reports,
}
