"""ControllerService: every rpc, thin over the jobs."""

import asyncio
import gc
import logging
import time
from dataclasses import dataclass
from functools import partial

from msgspec import Struct, to_builtins

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import Decision as DecisionMessage
from dbw.v1.iteration_pb2 import Membership as MembershipMessage
from dbw_controller.contract import PIECE_BYTES
from dbw_controller.core.decision import Decision
from dbw_controller.core.errors import (
    InvalidValueError,
    JobDiffersError,
    JobNotFoundError,
    LimitReachedError,
)
from dbw_controller.core.job import warm_up
from dbw_controller.core.policies import Policy, built_in_policies
from dbw_controller.core.reports import Membership, Report
from dbw_controller.core.spec import JobSpec
from dbw_controller.server import failures
from dbw_controller.server.jobs import Jobs
from dbw_controller.server.served_job import Event, Record
from dbw_controller.wire import messages
from dbw_controller.wire.state import export_state, import_state, require_known_format
from dbw_runtime.failure import StatusError
from dbw_runtime.rpc import Call

log = logging.getLogger(__name__)
AnyReport = pb.CoordinateRequest | pb.EndIterationRequest | pb.ReportRequest
PAGE = 100
# A job whose last decision took longer than this goes to a thread, so that others need not wait for it.
LONGEST_IN_LOOP = 0.002
# Messages of arrivals in one report. A parameter server needs a few; each costs time, even an empty one.
MOST_BATCHES = 4096


class Taken(Struct, frozen=True):
    """What became of a report."""

    before: Decision  # the newest decision before it
    decision: Decision | None  # the answer to it
    seconds: float  # that this took


@dataclass(frozen=True)
class Limits:
    """What the controller takes in."""

    workers: int = 10_000  # of one job
    state_bytes: int = 256 * 2**20  # of a state that is imported
    silent_seconds: float = 0.0  # after which a job is deleted; 0: never


class ControllerService:
    """Decides for any number of parameter servers."""

    descriptor = pb.DESCRIPTOR.services_by_name["ControllerService"]

    def __init__(self, jobs: Jobs, limits: Limits, default_policy: Policy, by_worker: bool = False) -> None:
        self._jobs, self._limits, self._by_worker = jobs, limits, by_worker
        self._default_policy = default_policy
        self._cleaning: asyncio.Task[None] | None = None

    def translate(self, error: Exception) -> StatusError | None:
        """What an error means to a caller."""
        return failures.failure(error)

    async def warm_up(self) -> None:
        """Compile what needs compiling, and take in all snapshots."""
        self._loop = asyncio.get_running_loop()
        log.info("compiling, which takes half a minute where it was never done before, and loading")
        await asyncio.to_thread(warm_up, built_in_policies())
        await asyncio.to_thread(self._jobs.load)
        gc.collect()
        gc.freeze()  # what is there now stays: collections need not look at it while somebody waits for a decision
        if self._limits.silent_seconds:
            self._cleaning = asyncio.ensure_future(self._clean())

    async def done(self) -> None:
        """Return never: there may always be another job."""
        await asyncio.Event().wait()

    async def finish(self) -> None:
        """Save all jobs."""
        if self._cleaning is not None:
            self._cleaning.cancel()
        await self._jobs.save_all()

    async def _clean(self) -> None:
        while True:
            await asyncio.sleep(min(60.0, self._limits.silent_seconds))
            await self._jobs.delete_silent(self._limits.silent_seconds)

    async def create_job(self, request: pb.CreateJobRequest, call: Call) -> pb.CreateJobResponse:
        """Create a job or attach to one."""
        call.job = request.job
        if not request.HasField("membership"):
            raise InvalidValueError("membership", None, "given: the workers that are alive")
        self._require_room(request.membership)
        membership = messages.membership_from(request.membership)
        iteration = request.iteration if request.HasField("iteration") else None
        try:
            record = self._jobs.get(request.job, call.identity)
        except JobNotFoundError:
            spec = messages.spec_from(request.spec, self._default_policy)
            record = self._jobs.create(request.job, call.identity, spec, membership, iteration)
            session = record.begin_session()
        else:
            spec = messages.spec_from(request.spec, record.job.spec.policy)
            if spec != record.job.spec:
                raise JobDiffersError(record.name, _differences(record.job.spec, spec))
            session = await record.run(partial(self._begin, record, membership, iteration))
        self._jobs.changed(record, 0)
        return pb.CreateJobResponse(session=session, job=messages.job_message(record, request.include_estimates))

    def _begin(self, record: Record, membership: Membership, iteration: int | None) -> str:
        """Attach a parameter server to a job: nobody else can report once this is done."""
        record.decision = record.job.begin(membership, iteration)
        record.forget_recent()
        return record.begin_session()

    async def coordinate(self, call: Call) -> None:
        """Answer a stream of reports."""
        record = None
        while (request := await call.read(pb.CoordinateRequest)) is not None:
            if record is None or request.job != record.name:
                if record is not None:
                    raise InvalidValueError("job", request.job, f"{record.name!r}, as in the stream's first request")
                call.job = request.job
                record = self._jobs.get(request.job, call.identity)
            decision = await self._take(record, request)
            if decision is not None:
                await call.write(pb.CoordinateResponse(decision=decision))

    async def report(self, request: pb.ReportRequest, call: Call) -> pb.ReportResponse:
        """Take in arrivals and membership."""
        call.job = request.job
        await self._take(self._jobs.get(request.job, call.identity), request)
        return pb.ReportResponse()

    async def end_iteration(self, request: pb.EndIterationRequest, call: Call) -> pb.EndIterationResponse:
        """Take in a whole iteration, and decide."""
        call.job = request.job
        record = self._jobs.get(request.job, call.identity)
        if not request.HasField("summary"):
            raise InvalidValueError("summary", None, "given; for a report without one there is Report")
        return pb.EndIterationResponse(decision=await self._take(record, request))

    async def _take(self, record: Record, request: AnyReport) -> DecisionMessage | None:
        begin = time.perf_counter()
        if request.HasField("membership"):
            self._require_room(request.membership)
        if (batches := len(request.arrivals)) > MOST_BATCHES:
            text = f"a report may have {MOST_BATCHES} messages of arrivals, not {batches}; send several"
            raise LimitReachedError("arrivals", text)
        report = messages.report_from(request)
        if (saving := self._jobs.must_wait(record)) is not None:
            await asyncio.shield(saving)
        # What only those who watch need is done once the answer is on its way.
        if record.is_free:
            taken = self._learn(record, request.session, report, begin)
            self._loop.call_soon(self._account, record, request, report, taken)
        else:
            taken = await record.run(
                partial(self._learn, record, request.session, report, begin),
                then=partial(self._account, record, request, report),
            )
        if taken.decision is None:
            return None
        return messages.decision_message(taken.decision, getattr(request, "include_estimates", False))

    def _learn(self, record: Record, session: str, report: Report, begin: float) -> Taken:
        """Give a report to its job, while nobody else uses that."""
        record.require_session(session)
        before = record.decision
        decision = record.job.report(report)
        seconds = time.perf_counter() - begin
        if decision is not None:
            record.decision, record.slow = decision, seconds > LONGEST_IN_LOOP
        return Taken(before, decision, seconds)

    def _account(self, record: Record, request: AnyReport, report: Report, taken: Taken) -> None:
        """Count what happened, tell those who watch, have it saved, and let the job get ready for the next report."""
        before, decision = taken.before, taken.decision
        new = decision is not None and decision.iteration > before.iteration
        if self._by_worker:
            for arrivals in report.arrivals:
                record.statistics.arrived(arrivals)
        rows = sum(len(arrivals.seconds) for arrivals in report.arrivals)
        record.happened(Event(report, before, decision, record.job.membership, rows))
        if report.summary is not None and decision is not None and new:
            decided = before if before.iteration == report.summary.iteration else None
            record.statistics.ended(report.summary, decided)
            record.statistics.decided(decision, taken.seconds)
            if record.watchers and not isinstance(request, pb.ReportRequest):
                record.watchers.tell(partial(messages.watch_message, record, request.summary))
        self._jobs.changed(record, int(new))
        if record.is_free:  # otherwise the next report, in a thread, does it
            record.job.catch_up()

    def _require_room(self, membership: MembershipMessage) -> None:
        """Refuse a job that is so large that others would have to wait for it."""
        most, asked = self._limits.workers, max(membership.live_workers, len(membership.workers))
        if asked > most:
            text = f"a job may have {most} workers here, not {asked}; see --max-workers"
            raise LimitReachedError("max_workers", text)

    async def get_decision(self, request: pb.GetDecisionRequest, call: Call) -> pb.GetDecisionResponse:
        """Look a decision up."""
        call.job = request.job
        record = self._jobs.get(request.job, call.identity)
        iteration = request.iteration if request.HasField("iteration") else None
        decision = await record.run(partial(record.job.decision, iteration))
        return pb.GetDecisionResponse(decision=messages.decision_message(decision, request.include_estimates))

    async def get_job(self, request: pb.GetJobRequest, call: Call) -> pb.GetJobResponse:
        """Show a job."""
        call.job = request.job
        return pb.GetJobResponse(job=messages.job_message(self._jobs.get(request.job, call.identity)))

    async def list_jobs(self, request: pb.ListJobsRequest, call: Call) -> pb.ListJobsResponse:
        """List the caller's jobs; a page's token is the last name of the page before."""
        records = [r for r in self._jobs.all() if r.owner == call.identity and r.name > request.page_token]
        size = min(request.page_size or PAGE, PAGE)
        token = records[size - 1].name if len(records) > size else ""
        return pb.ListJobsResponse(jobs=map(messages.job_message, records[:size]), next_page_token=token)

    async def delete_job(self, request: pb.DeleteJobRequest, call: Call) -> pb.DeleteJobResponse:
        """Delete a job."""
        call.job = request.job
        try:
            await self._jobs.delete(self._jobs.get(request.job, call.identity), "deleted")
        except JobNotFoundError:
            if not request.allow_missing:
                raise
        return pb.DeleteJobResponse()

    async def watch_job(self, request: pb.WatchJobRequest, call: Call) -> None:
        """Send a job as it is, and then every iteration."""
        call.job = request.job
        record = self._jobs.get(request.job, call.identity)
        watcher = record.watchers.add(request.include_estimates)
        try:
            response: pb.WatchJobResponse | None = pb.WatchJobResponse(
                job=messages.job_message(record, request.include_estimates)
            )
            while response is not None:
                await call.write(response)
                response = await call.wait(watcher.next())
        finally:
            record.watchers.remove(watcher)

    async def diagnose_job(self, request: pb.DiagnoseJobRequest, call: Call) -> pb.DiagnoseJobResponse:
        """Say what looks wrong."""
        call.job = request.job
        diagnosis = await asyncio.to_thread(self._jobs.get(request.job, call.identity).diagnose)
        findings = map(messages.finding_message, diagnosis.findings())
        return pb.DiagnoseJobResponse(findings=findings, iterations=diagnosis.iterations)

    async def export_job_state(self, request: pb.ExportJobStateRequest, call: Call) -> None:
        """Send what a job has learnt, in pieces."""
        call.job = request.job
        record = self._jobs.get(request.job, call.identity)
        header, data = await record.run(partial(export_state, record.name, record.job), in_thread=True)
        await call.write(pb.ExportJobStateResponse(header=header, data=data[:PIECE_BYTES]))
        for start in range(PIECE_BYTES, len(data), PIECE_BYTES):
            await call.write(pb.ExportJobStateResponse(data=data[start : start + PIECE_BYTES]))

    async def import_job_state(self, call: Call) -> pb.ImportJobStateResponse:
        """Replace what a job has learnt, once all pieces are there."""
        request = await call.read(pb.ImportJobStateRequest)
        if request is None or not request.HasField("header"):
            raise InvalidValueError("header", None, "given in the first request")
        call.job, session, header = request.job, request.session, request.header
        record = self._jobs.get(request.job, call.identity)
        record.require_session(session)
        require_known_format(header)
        if header.total_bytes > self._limits.state_bytes:
            text = f"a state may have {self._limits.state_bytes} bytes here; see the option --max-state-bytes"
            raise LimitReachedError("max_state_bytes", text)
        data = bytearray()
        while request is not None and len(data) <= header.total_bytes:
            data += request.data
            request = await call.read(pb.ImportJobStateRequest)
        await record.run(partial(self._adopt, record, session, header, bytes(data)), in_thread=True)
        self._jobs.changed(record, 0)
        await self._jobs.save(record)  # what was imported may have taken long to learn
        return pb.ImportJobStateResponse(job=messages.job_message(record))

    def _adopt(self, record: Record, session: str, header: pb.JobStateHeader, data: bytes) -> None:
        record.require_session(session)  # much may have happened during the upload
        record.decision = import_state(record.job, header, data)


def _differences(there: JobSpec, asked: JobSpec) -> str:
    other, pairs = to_builtins(asked.snapshot()), to_builtins(there.snapshot()).items()
    return ", ".join(f"{name} is {value}, not {other[name]}" for name, value in pairs if value != other[name])
