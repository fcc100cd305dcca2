"""A stub of the controller that records what is sent through it and what comes back, for any client."""
# ruff: noqa: N802 (rpcs have the names that generated stubs give them)

import hashlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any

import grpc

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Decision
from dbw_runtime.failure import reason_of
from tests.history.operations import NOT_SENT, Answer, History, Kind, Operation

# A server that stops may cut off what it has half done, so that nobody knows whether it happened.
INDEFINITE = (None, "NOT_READY")
# What gRPC says of a request for which there was no connection.
NOT_CONNECTED = "failed to connect to all addresses"


class WrongDecisionError(AssertionError):
    """A decision that can never be right."""


class RecordingStub:
    """What a client calls instead of the generated stub, with `grpc.aio`."""

    def __init__(self, channel: grpc.aio.Channel, history: History, client: str) -> None:
        self._stub: Any = ControllerServiceStub(channel)
        self._history, self._client = history, client

    async def CreateJob(self, request: pb.CreateJobRequest, **options: Any) -> Any:
        iteration = request.iteration if request.HasField("iteration") else None
        return await self._call(self._operation(Kind.CREATE, request.job, iteration=iteration), request, options)

    async def EndIteration(self, request: pb.EndIterationRequest, **options: Any) -> Any:
        preceding = self._preceding(request)
        operation = self._end(request, request, after=preceding[-1].invoked if preceding else 0)
        try:
            return await self._call(operation, request, options)
        finally:
            self._end_preceding(preceding, operation)

    async def Report(self, request: pb.ReportRequest, **options: Any) -> Any:
        return await self._call(self._operation(Kind.REPORT, request.job, session=request.session), request, options)

    async def DeleteJob(self, request: pb.DeleteJobRequest, **options: Any) -> Any:
        session = request.session if request.HasField("session") else None
        operation = self._operation(Kind.DELETE, request.job, session=session, allow_missing=request.allow_missing)
        return await self._call(operation, request, options)

    async def GetJob(self, request: pb.GetJobRequest, **options: Any) -> Any:
        return await self._call(self._operation(Kind.JOB, request.job), request, options)

    async def GetDecision(self, request: pb.GetDecisionRequest, **options: Any) -> Any:
        operation = self._operation(Kind.DECISION, request.job, iteration=request.iteration)
        return await self._call(operation, request, options)

    async def ImportJobState(self, requests: Iterable[pb.ImportJobStateRequest], **options: Any) -> Any:
        first, *_ = pieces = list(requests)
        data = b"".join(piece.data for piece in pieces)
        operation = self._operation(
            Kind.IMPORT,
            first.job,
            session=first.session,
            learnt=first.header.learnt_iterations,
            only_if_newer=first.only_if_newer,
            damaged=hashlib.sha256(data).digest() != first.header.sha256,
        )
        return await self._call(operation, iter(pieces), options)

    async def ExportJobState(
        self, request: pb.ExportJobStateRequest, **options: Any
    ) -> AsyncIterator[pb.ExportJobStateResponse]:
        operation = self._history.invoke(self._operation(Kind.EXPORT, request.job))
        try:
            pieces = [piece async for piece in self._stub.ExportJobState(request, **options)]
        except BaseException as error:
            self._failed(operation, error)
            raise
        self._history.answered(operation, Answer(learnt=pieces[0].header.learnt_iterations))
        for piece in pieces:
            yield piece

    async def WatchJob(self, request: pb.WatchJobRequest) -> None:
        """Watch until the stream ends, however it does."""
        watched = self._history.watch(request.job)
        try:
            async for response in self._stub.WatchJob(request):
                if response.HasField("summary"):
                    watched.iterations.append((response.summary.iteration, response.skipped_iterations))
        finally:
            watched.ended = self._history.now()

    async def Coordinate(
        self, requests: AsyncIterable[pb.CoordinateRequest], **options: Any
    ) -> AsyncIterator[pb.CoordinateResponse]:
        waiting: deque[Operation] = deque()
        preceding: dict[Operation, list[Operation]] = {}

        async def sent() -> AsyncIterator[pb.CoordinateRequest]:
            async for request in requests:
                if request.HasField("summary"):
                    earlier = self._preceding(request)
                    after = earlier[-1].invoked if earlier else 0
                    waiting.append(self._history.invoke(self._end(request, request, rpc="Coordinate", after=after)))
                    preceding[waiting[-1]] = earlier
                yield request

        try:
            async for response in self._stub.Coordinate(sent(), **options):
                operation = waiting.popleft()
                self._history.answered(operation, answer_of(response))
                self._end_preceding(preceding.pop(operation), operation)
                yield response
        except BaseException as error:
            if waiting:
                self._failed(waiting.popleft(), error)
            raise
        finally:
            for operation in waiting:  # nobody reads them any more, but that is for the controller to know
                self._history.gave_up(operation)
            for operation, earlier in preceding.items():
                self._end_preceding(earlier, operation)

    def _operation(self, kind: Kind, job: str, **fields: Any) -> Operation:
        return Operation(kind, job, self._client, **fields)

    def _end(self, ended: Any, request: Any, **fields: Any) -> Operation:
        iteration = ended.summary.iteration
        return self._operation(Kind.END, request.job, session=request.session, iteration=iteration, **fields)

    def _preceding(self, request: Any) -> list[Operation]:
        """The iterations that a request reports beside its own: they happen one by one, as if each were a request."""
        operations: list[Operation] = []
        for ended in request.preceding:
            after = operations[-1].invoked if operations else 0
            operations.append(
                self._history.invoke(self._end(ended, request, rpc="preceding", precedes=True, after=after))
            )
        return operations

    def _end_preceding(self, preceding: list[Operation], operation: Operation) -> None:
        """They have happened if the request was answered, and otherwise perhaps."""
        for earlier in preceding:
            if operation.answer is not None:
                self._history.answered(earlier, Answer())
            else:
                self._history.gave_up(earlier)

    async def _call(self, operation: Operation, request: Any, options: dict[str, Any]) -> Any:
        self._history.invoke(operation)
        try:
            response = await getattr(self._stub, operation.kind.value)(request, **options)
        except BaseException as error:
            self._failed(operation, error)
            raise
        self._history.answered(operation, answer_of(response))
        return response

    def _failed(self, operation: Operation, error: BaseException) -> None:
        reason = reason_of(error) if isinstance(error, grpc.aio.AioRpcError) else None
        if isinstance(error, grpc.aio.AioRpcError) and (error.details() or "").startswith(NOT_CONNECTED):
            self._history.refused(operation, NOT_SENT)
        elif reason in INDEFINITE:
            self._history.gave_up(operation)
        else:
            self._history.refused(operation, str(reason))


def answer_of(response: Any) -> Answer:
    """What an answer shows of the job."""
    fields = {field.name for field in response.DESCRIPTOR.fields}
    job = response.job if "job" in fields else None
    decision = response.decision if "decision" in fields else None if job is None else job.decision
    answer = Answer(getattr(response, "session", None), None if job is None else job.learnt_iterations)
    if decision is not None:
        answer.iteration, answer.decision = decision.iteration, _fingerprint(decision)
    return answer


def _fingerprint(decision: Decision) -> str:
    """All of a decision but its estimates, which only some requests ask for."""
    live = decision.live_workers
    if not 1 <= decision.k <= max(live, 1):
        raise WrongDecisionError(f"k is {decision.k} of {live} live workers")
    deadline = f" deadline={decision.deadline_seconds}" if decision.HasField("deadline_seconds") else ""
    return f"k={decision.k}/{live} reason={decision.reason}{deadline} missing={list(decision.missing_inputs)}"
