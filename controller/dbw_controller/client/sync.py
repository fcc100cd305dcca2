"""The client for programs with threads."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol, Self, TypeVar, Unpack

import grpc

from dbw.v1.controller_pb2 import (
    CoordinateRequest,
    CoordinateResponse,
    DeleteJobRequest,
    ExportJobStateRequest,
    GetJobRequest,
)
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.job_pb2 import JobSpec
from dbw_controller.client.conversation import Conversation, Link, Summary
from dbw_controller.client.settings import ATTACH_SECONDS, ClientSettings, delays, join_state, split_state
from dbw_controller.client.training import Training
from dbw_runtime.failure import reason_of

Item = TypeVar("Item", covariant=True)


class Get(Protocol[Item]):
    """Waits for the next gradient, as a queue's `get` does: it may raise `queue.Empty` or `TimeoutError`."""

    def __call__(self, *, timeout: float) -> Item | None:
        """Return the gradient, or None if none arrives in time."""
        ...


class DbwClient(ClientSettings):
    """A controller, for parameter servers with threads."""

    def job(
        self, name: str, workers: int | Sequence[int], spec: JobSpec | None = None, iteration: int = 0
    ) -> "TrainingJob":
        """Create a job, or attach to one: `workers` are alive, and `iteration` is the next to begin."""
        return TrainingJob(self, self.conversation(name, workers, spec, iteration))


class TrainingJob(Training):
    """A job of a controller. All methods may be called from any thread.

    Leaving its `with` block deletes the job, because training is over; an exception keeps it, to be resumed.
    """

    def __init__(self, settings: ClientSettings, conversation: Conversation) -> None:
        super().__init__(settings, conversation)
        self._channel = self._connection.open()
        self._stub = ControllerServiceStub(self._channel)
        self._changed = threading.Condition()  # guards the conversation as well
        self._closing = threading.Event()
        self._outbox: SimpleQueue[CoordinateRequest | None] = SimpleQueue()
        self._cancel: Callable[[], object] = lambda: None  # ends the call that the thread below waits for
        self._link = threading.Thread(target=self._stay_attached, name=f"dbw {conversation.name}", daemon=True)
        self._link.start()
        with self._changed:
            self._wait_for_decision()

    def _now(self) -> float:
        return time.monotonic()

    def arrived(self, seconds: float, worker: int | None = None, iteration: int | None = None) -> None:
        """As every training's, from any thread."""
        with self._changed:
            super().arrived(seconds, worker, iteration)

    def set_workers(self, workers: int | Sequence[int]) -> None:
        """As every training's, from any thread."""
        with self._changed:
            super().set_workers(workers)

    def gradients(self, get: Get[Item]) -> Iterator[Item]:
        """Wait for gradients with `get(timeout=…)`, until k have `arrived` or the deadline has passed and one has.

        No timeout is longer than a second: k may fall meanwhile, because workers are lost.
        """
        while self.missing:
            try:
                gradient = get(timeout=self._wait.pause(self._elapsed))
            except (Empty, TimeoutError):
                gradient = None
            if gradient is not None:
                yield gradient
            elif self._wait.remaining(self._elapsed) == 0:
                return

    def end_iteration(self, **summary: Unpack[Summary]) -> int:
        """The iteration has ended; returns k of the next. `Summary` lists what it takes."""
        with self._changed:
            completed = self._conversation.summary(**self._completed(summary))
            request = self._conversation.end_iteration(completed, self._now())
            if request is not None:
                self._outbox.put(request)
            return self._wait_for_decision()

    def _wait_for_decision(self) -> int:
        self._changed.wait_for(lambda: not self._conversation.awaits_decision, self._conversation.patience)
        return self._begin_iteration()

    def export_state(self, timeout: float = ATTACH_SECONDS) -> bytes | None:
        """All that the job has learnt, for a checkpoint; None if the controller cannot be reached."""
        request = ExportJobStateRequest(job=self.name)
        with self._warning("the state cannot be exported"):
            call = self._stub.ExportJobState(request, timeout=timeout, metadata=self._connection.metadata())
            return join_state(list(call))
        return None

    def import_state(self, state: bytes, timeout: float = ATTACH_SECONDS) -> bool:
        """Give the job an exported state, unless it has learnt from more iterations; returns whether that worked."""
        with self._warning("the state cannot be imported"):
            requests = split_state(state, self.name, self._conversation.session)
            response = self._stub.ImportJobState(requests, timeout=timeout, metadata=self._connection.metadata())
            with self._changed:
                self._imported(response.job.decision)
            return True
        return False

    def _stay_attached(self) -> None:
        while not self._closing.wait(next(self._waits)):
            try:
                if self._conversation.link is Link.REPLACED and not self._may_take_back():
                    continue
                for response in self._attach():
                    self._waits = delays()
                    with self._changed:
                        self._conversation.decided(response.decision, self._now())
                        self._changed.notify_all()
                raise ConnectionError("the controller has ended the stream")
            except Exception as error:  # whatever it is, training goes on
                self._outbox.put(None)  # ends the thread that sends
                if self._closing.is_set():
                    return
                with self._changed:
                    self._failed(error)
                    self._changed.notify_all()

    def _may_take_back(self) -> bool:
        """Look whether the process that has taken the job over has gone."""
        metadata = self._connection.metadata()
        look = self._stub.GetJob.future(GetJobRequest(job=self.name), timeout=ATTACH_SECONDS, metadata=metadata)
        self._cancel = look.cancel
        try:
            job = look.result().job
        except grpc.RpcError as error:
            if reason_of(error) != "JOB_NOT_FOUND":
                raise
            job = None
        with self._changed:
            return self._conversation.may_take_back(job, self._now())

    def _attach(self) -> Iterable[CoordinateResponse]:
        metadata = self._connection.metadata()
        with self._changed:
            request = self._conversation.create_request()
        creation = self._stub.CreateJob.future(request, timeout=ATTACH_SECONDS, metadata=metadata)
        self._cancel = creation.cancel
        response = creation.result()
        with self._changed:
            self._outbox = SimpleQueue()
            if (repeated := self._created(response)) is not None:
                self._outbox.put(repeated)
            stream = self._stub.Coordinate(iter(self._outbox.get, None), metadata=metadata)
            self._cancel = stream.cancel
            if self._closing.is_set():
                self._cancel()
            self._changed.notify_all()
            return stream

    def close(self, delete: bool = False) -> None:
        """Disconnect for good; the controller keeps the job unless `delete` is set."""
        with self._changed:
            if self._closing.is_set():
                return
            self._closing.set()
            if self._conversation.link is Link.ATTACHED:
                self._cancel()
        if delete:
            self._delete()
        self._channel.close()
        self._link.join(self._settings.deadline)

    def _delete(self) -> None:
        self._link.join(self._settings.end_seconds)  # CreateJob has perhaps begun another session already
        self._cancel()
        if self._conversation.link.is_others:  # it is the job of another process
            return
        request = DeleteJobRequest(job=self.name, session=self._conversation.session, allow_missing=True)
        with self._warning("the job cannot be deleted"):
            self._stub.DeleteJob(request, timeout=self._settings.end_seconds, metadata=self._connection.metadata())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(delete=kind is None)
