"""ControllerService: every rpc, thin over the jobs."""

import asyncio
import gc
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from msgspec import to_builtins

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import Decision as DecisionMessage
from dbw.v1.iteration_pb2 import Membership as MembershipMessage
from dbw_controller.contract import PIECE_BYTES
from dbw_controller.core.errors import InvalidValueError, JobDiffersError, JobNotFoundError, LimitReachedError
from dbw_controller.core.estimators.durations import CELL_BYTES
from dbw_controller.core.job import warm_up
from dbw_controller.core.policies import Policy
from dbw_controller.core.reports import Report
from dbw_controller.core.spec import JobSpec
from dbw_controller.server import failures
from dbw_controller.server.heavy import HeavyWork
from dbw_controller.server.job_messages import job_message, watch_message
from dbw_controller.server.jobs import Jobs, readable
from dbw_controller.server.recent_reports import MIN_ITERATIONS, SUFFICIENT_ITERATIONS
from dbw_controller.server.saver import DISK_SECONDS
from dbw_controller.server.served_job import Outcome, ServedJob
from dbw_controller.server.watchers import Watcher, tell_all
from dbw_controller.wire import messages
from dbw_controller.wire.messages import AnyReport
from dbw_controller.wire.state import export_state, import_state, require_known_format
from dbw_runtime.failure import StatusError
from dbw_runtime.rpc import Call

log = logging.getLogger(__name__)
PAGE = 100
# Messages of arrivals in one request, and iterations that precede it. A parameter server needs a few; each costs time,
# even an empty one.
MAX_BATCHES, MAX_PRECEDING = 4096, 1024
MAX_WATCHERS = 64  # of one job: each iteration is sent to all of them
# What an import may take for each byte that is uploaded: the bytes themselves, and cells of samples.
IMPORT_FACTOR = 6
# To take in what may take so many bytes of memory, others need not wait.
LARGE_GROWTH = 16 * 2**20


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
        self._default_policy, self._quotas, self._heavy = default_policy, jobs.quotas, HeavyWork()
        self._cleaning: asyncio.Task[None] | None = None

    def translate(self, error: Exception) -> StatusError | None:
        """What an error means to a caller."""
        return failures.failure(error)

    async def warm_up(self) -> None:
        """Compile what needs compiling, and restore all jobs."""
        self._loop = asyncio.get_running_loop()
        log.info("compiling, which takes half a minute where it was never done before, and loading")
        await asyncio.to_thread(warm_up)
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
        await self._jobs.close()

    async def _clean(self) -> None:
        while True:
            await asyncio.sleep(min(60.0, self._limits.silent_seconds))
            await self._jobs.delete_silent(self._limits.silent_seconds)

    def _job(self, name: str, call: Call, for_admins: bool = False) -> ServedJob:
        """The job that a call is about, which its log lines then name."""
        call.job = name
        return self._jobs.get(name, call.caller, for_admins)

    async def create_job(self, request: pb.CreateJobRequest, call: Call) -> pb.CreateJobResponse:
        """Create a job or attach to one."""
        call.job = request.job
        if not request.HasField("membership"):
            raise InvalidValueError("membership", None, "given: the workers that are alive")
        self._require_room(request.membership)
        membership = messages.membership_from(request.membership)
        iteration = request.iteration if request.HasField("iteration") else None
        try:
            served = self._jobs.get(request.job, call.caller)
        except JobNotFoundError:
            spec = messages.spec_from(request.spec, self._default_policy)
            served = self._jobs.create(request.job, call.identity, spec, membership, iteration)
            response = _creation(request, served, served.begin_session())
        else:
            spec = messages.spec_from(request.spec, served.job.spec.policy)
            if spec != served.job.spec:
                raise JobDiffersError(served.name, _differences(served.job.spec, spec))

            growth = self._growth(served, request.membership.live_workers)
            self._quotas.require_room(served.owner, growth)

            def attach() -> pb.CreateJobResponse:  # the answer shows nothing that others do later
                return _creation(request, served, served.attach(membership, iteration))

            try:
                response = await served.run(
                    attach,
                    then=lambda created: served.end_other_streams(created.session),
                    in_thread=growth >= LARGE_GROWTH,
                    room=self._quotas.reserved(served.owner, growth),
                )
            except JobNotFoundError:  # it was deleted while this waited for it
                return await self.create_job(request, call)
            self._quotas.charge(served)
        served.changed()
        return response

    async def coordinate(self, call: Call) -> None:
        """Answer a stream of reports."""
        if (request := await call.read(pb.CoordinateRequest)) is None:
            return
        served = self._job(request.job, call)
        try:
            while request is not None:
                if request.job != served.name:
                    raise InvalidValueError("job", request.job, f"{served.name!r}, as in the stream's first request")
                decision = await self._accept_report(served, request)
                served.streams[call] = session = request.session
                request = None  # it may be large, and the next one may not come for long
                if decision is not None:
                    await call.write(pb.CoordinateResponse(decision=decision))
                served.require_session(session)  # which may have ended before the stream was seen to wait
                request = await call.read(pb.CoordinateRequest)
        finally:
            served.stream_ended(call)

    async def report(self, request: pb.ReportRequest, call: Call) -> pb.ReportResponse:
        """Take in arrivals and membership."""
        await self._accept_report(self._job(request.job, call), request)
        return pb.ReportResponse()

    async def end_iteration(self, request: pb.EndIterationRequest, call: Call) -> pb.EndIterationResponse:
        """Take in a whole iteration, and decide."""
        served = self._job(request.job, call)
        if not request.HasField("summary"):
            raise InvalidValueError("summary", None, "given; for a report without one there is Report")
        return pb.EndIterationResponse(decision=await self._accept_report(served, request))

    async def _accept_report(self, served: ServedJob, request: AnyReport) -> DecisionMessage | None:
        begin = time.perf_counter()
        growth = self._require_room_for(served, request)
        requests = messages.one_by_one(request)
        reports = [messages.report_from(part) for part in requests]  # one that makes no sense changes nothing
        if len(reports) == 1 and served.is_free and growth < LARGE_GROWTH:
            outcome: Outcome | None = served.apply_report(request.session, reports[0], begin)
            self._loop.call_soon(self._after_reply, served, growth, requests, reports, [outcome])
        else:  # one after the other, with nothing between them
            apply = partial(served.apply_reports, request.session, reports, begin)
            after_reply = partial(self._after_reply, served, growth, requests, reports)
            outcomes, failure = await served.run(
                apply,
                then=lambda applied: after_reply(applied[0]),
                in_thread=True,
                room=self._quotas.reserved(served.owner, growth),
            )
            if failure is not None:
                raise failure
            outcome = outcomes[-1]
        if outcome is None or outcome.decision is None:
            return None
        return messages.decision_message(outcome.decision, getattr(request, "include_estimates", False))

    def _require_room_for(self, served: ServedJob, request: AnyReport) -> int:
        """Refuse a report that is too large for the job or its owner's quota; returns how much memory it may take."""
        live_workers = 0
        if request.HasField("membership"):
            self._require_room(request.membership)
            live_workers = request.membership.live_workers
        preceding = () if isinstance(request, pb.ReportRequest) else request.preceding
        if len(preceding) > MAX_PRECEDING:
            text = f"{MAX_PRECEDING} iterations may precede a summary, not {len(preceding)}; leave the oldest out"
            raise LimitReachedError("preceding", text)
        batches = len(request.arrivals)
        if preceding:
            batches += sum(len(ended.arrivals) for ended in preceding)
        if batches > MAX_BATCHES:
            text = f"a report may have {MAX_BATCHES} messages of arrivals, not {batches}; send several"
            raise LimitReachedError("arrivals", text)
        growth = self._growth(served, live_workers, batches + len(preceding) + 1)
        self._quotas.require_room(served.owner, growth)
        return growth

    def _growth(self, served: ServedJob, workers: int, rows: int = 0) -> int:
        """How much memory this many workers may take at most, with this many more rows of samples."""
        there = served.job.durations.workers
        if workers > there:  # all samples are copied
            return served.job.memory_bytes(workers) + rows * workers * CELL_BYTES
        return rows * there * CELL_BYTES

    def _after_reply(
        self,
        served: ServedJob,
        growth: int,
        requests: Sequence[AnyReport],
        reports: Sequence[Report],
        outcomes: Sequence[Outcome | None],
    ) -> None:
        """Do what the caller need not wait for: count, show, save, and prepare the job for the next report."""
        iterations = 0
        for request, report, outcome in zip(requests, reports, outcomes, strict=False):  # one may have failed
            if outcome is None:
                continue
            served.record(report, outcome, self._by_worker)
            iterations += outcome.is_new
            if outcome.is_new and served.watchers and not isinstance(request, pb.ReportRequest):
                tell_all(served.watchers, partial(watch_message, served, request.summary))
        served.changed(iterations)
        self._quotas.grown(served, growth)
        if served.is_free:  # otherwise the next report, in a thread, does it
            served.job.catch_up()

    def _require_room(self, membership: MembershipMessage) -> None:
        """Refuse a job that is so large that others would have to wait for it."""
        most, asked = self._limits.workers, max(membership.live_workers, len(membership.workers))
        if asked > most:
            text = f"a job may have {most} workers here, not {asked}; see --max-workers"
            raise LimitReachedError("max_workers", text)

    async def get_decision(self, request: pb.GetDecisionRequest, call: Call) -> pb.GetDecisionResponse:
        """Look a decision up."""
        served = self._job(request.job, call, for_admins=True)
        iteration = request.iteration if request.HasField("iteration") else None
        decision = await served.run(partial(served.job.decision, iteration))
        return pb.GetDecisionResponse(decision=messages.decision_message(decision, request.include_estimates))

    async def get_job(self, request: pb.GetJobRequest, call: Call) -> pb.GetJobResponse:
        """Show a job."""
        served = self._job(request.job, call, for_admins=True)
        job = await served.run(partial(job_message, served))
        job.silent_seconds = served.silent_seconds
        return pb.GetJobResponse(job=job)

    async def list_jobs(self, request: pb.ListJobsRequest, call: Call) -> pb.ListJobsResponse:
        """List the jobs that the caller may see; a page's token is the last name of the page before."""
        jobs = [job for job in self._jobs.visible(call.caller) if job.name > request.page_token]
        size = min(request.page_size or PAGE, PAGE)
        token = jobs[size - 1].name if len(jobs) > size else ""
        shown = [message for _, message in readable(jobs[:size], job_message)]
        return pb.ListJobsResponse(jobs=shown, next_page_token=token)

    async def delete_job(self, request: pb.DeleteJobRequest, call: Call) -> pb.DeleteJobResponse:
        """Delete a job."""
        try:
            session = request.session if request.HasField("session") else None
            served = self._job(request.job, call, for_admins=True)
            why = "deleted" if served.belongs_to(call.caller) else "deleted by an administrator"
            await self._jobs.delete(served, why, session)
        except JobNotFoundError:
            if not request.allow_missing:
                raise
        return pb.DeleteJobResponse()

    async def watch_job(self, request: pb.WatchJobRequest, call: Call) -> None:
        """Send a job as it is, and then every iteration."""
        served = self._job(request.job, call, for_admins=True)
        if len(served.watchers) >= MAX_WATCHERS:
            raise LimitReachedError("watchers", f"{MAX_WATCHERS} watch this job already; end some, or ask with GetJob")
        watcher = Watcher(request.include_estimates)
        del request  # it may be large, and a call takes as long as its job
        served.watchers.add(watcher)
        try:
            await call.write(pb.WatchJobResponse(job=job_message(served, watcher.include_estimates)))
            while (response := await call.wait(watcher.next())) is not None:
                await call.write(response)
        finally:
            served.watchers.discard(watcher)

    async def diagnose_job(self, request: pb.DiagnoseJobRequest, call: Call) -> pb.DiagnoseJobResponse:
        """Say what looks wrong."""
        served = self._job(request.job, call, for_admins=True)
        diagnose = partial(asyncio.to_thread, served.recent.diagnose, served.job.spec.sync_mode)
        diagnosis = await self._heavy.run(call.identity, diagnose)
        return pb.DiagnoseJobResponse(
            findings=map(messages.finding_message, diagnosis.findings()),
            iterations=diagnosis.iterations,
            min_iterations=MIN_ITERATIONS,
            sufficient_iterations=SUFFICIENT_ITERATIONS,
        )

    async def export_job_state(self, request: pb.ExportJobStateRequest, call: Call) -> None:
        """Send what a job has learnt, in pieces."""
        served = self._job(request.job, call)
        export = partial(served.run, partial(export_state, served.name, served.job), in_thread=True)
        header, data = await self._heavy.run(call.identity, export)
        await call.write(pb.ExportJobStateResponse(header=header, data=data[:PIECE_BYTES]))
        for start in range(PIECE_BYTES, len(data), PIECE_BYTES):
            await call.write(pb.ExportJobStateResponse(data=data[start : start + PIECE_BYTES]))

    async def import_job_state(self, call: Call) -> pb.ImportJobStateResponse:
        """Replace what a job has learnt, once all pieces are there."""
        request = await call.read(pb.ImportJobStateRequest)
        if request is None or not request.HasField("header"):
            raise InvalidValueError("header", None, "given in the first request")
        session, only_if_newer = request.session, request.only_if_newer
        told = request.header
        header = pb.JobStateHeader(  # and nothing else of the request
            format_version=told.format_version, total_bytes=told.total_bytes, sha256=told.sha256
        )
        served = self._job(request.job, call)
        served.require_session(session)
        require_known_format(header)
        if header.total_bytes > self._limits.state_bytes:
            text = f"a state may have {self._limits.state_bytes} bytes here; see the option --max-state-bytes"
            raise LimitReachedError("max_state_bytes", text)
        with self._quotas.reserved(served.owner, header.total_bytes * IMPORT_FACTOR):
            data = await _upload(request, header.total_bytes, call)
            del request

            def adopt() -> pb.ImportJobStateResponse:
                served.adopt(session, lambda job: import_state(job, header, data, only_if_newer))
                return pb.ImportJobStateResponse(job=job_message(served))

            def adopted(_: object) -> None:
                self._quotas.charge(served)
                served.changed()

            response = await self._heavy.run(call.identity, partial(served.run, adopt, adopted, in_thread=True))
        with suppress(TimeoutError):  # it may have taken long to learn, and is saved later if the disk is slow
            async with asyncio.timeout(DISK_SECONDS):
                await served.saver.save()
        return response


async def _upload(first: pb.ImportJobStateRequest, size: int, call: Call) -> bytes:
    """All pieces of a state, as far as they are of this size together, and a byte more if there is too much."""
    data, request = bytearray(), first
    while True:
        data += request.data[: size + 1 - len(data)]
        if len(data) > size or (following := await call.read(pb.ImportJobStateRequest)) is None:
            return bytes(data)
        request = following


def _creation(request: pb.CreateJobRequest, served: ServedJob, session: str) -> pb.CreateJobResponse:
    return pb.CreateJobResponse(session=session, job=job_message(served, request.include_estimates))


def _differences(there: JobSpec, asked: JobSpec) -> str:
    other, pairs = to_builtins(asked.snapshot()), to_builtins(there.snapshot()).items()
    return ", ".join(f"{name} is {value}, not {other[name]}" for name, value in pairs if value != other[name])
