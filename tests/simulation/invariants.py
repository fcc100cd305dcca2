"""What must hold after every event of a simulation, whatever fails."""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec import Struct, msgpack

from dbw_controller.server.jobs import Jobs
from dbw_controller.server.served_job import ServedJob
from dbw_controller.server.service import ControllerService
from dbw_controller.server.store import SnapshotStore
from dbw_ps import training_log
from dbw_ps.checkpoint import CheckpointFolder
from dbw_ps.log_writer import LogWriter
from dbw_ps.rounds import Rounds
from tests.simulation.loop import PROCESS, Process
from tests.simulation.worker import ELEMENTS, element

# How long a change may wait to be saved while the disk works, and a report for its answer while the process runs.
SAVED_SECONDS, ANSWER_SECONDS = 12.0, 1.0


class ViolationError(BaseException):
    """An invariant does not hold. Not an Exception: real code must not catch it."""


class Invariants:
    """Watches the real objects of all processes. `live_workers` are those that a parameter server's process sees."""

    def __init__(self, live_workers: Callable[[str], int]) -> None:
        self._live_workers = live_workers
        self._violations: list[str] = []
        self._learnt: dict[ServedJob, int] = {}
        self._sessions: dict[ServedJob, str] = {}
        self._snapshots: dict[str, int] = {}  # the learnt iterations of each job on the controller's disk
        self._saved_or_trouble: dict[str, float] = {}  # when each job was last saved, or could not be
        self._checkpoints: dict[str, int] = {}  # the iteration of the last checkpoint of each parameter server
        self._begun: set[str] = set()

    def violated(self, text: str) -> None:
        """Take note of a violation; the simulation ends after this event."""
        self._violations.append(text)

    def check(self) -> None:
        """After every event: jobs never unlearn, and nothing was noted."""
        for served, before in self._learnt.items():
            now = served.job.learnt_iterations
            if now < before:
                self.violated(f"job {served.name} had learnt {before} iterations, and now {now}")
            self._learnt[served] = now
        if self._violations:
            raise ViolationError(self._violations[0])

    def controller_died(self) -> None:
        """Its jobs are gone with it."""
        self._learnt.clear()
        self._sessions.clear()

    def check_jobs(self, jobs: Jobs, now: float, can_save: bool) -> None:
        """What changes is saved soon, unless the disk fails or hangs. No silence is longer than the simulation."""
        for served in jobs.all():
            if not 0.0 <= served.silent_seconds <= now:
                self.violated(f"job {served.name} seems to be silent for {served.silent_seconds:g} s")
            if not (can_save and served.saver.is_unsaved):
                self._saved_or_trouble[served.name] = now
            elif now - self._saved_or_trouble.setdefault(served.name, now) > SAVED_SECONDS:
                self.violated(f"job {served.name} was not saved for {SAVED_SECONDS:g} s, though the disk works")

    def has_begun(self, process: str) -> bool:
        """Whether a parameter server has written that its training has begun."""
        return process in self._begun

    def check_resumed(self, process: str, iteration: int) -> None:
        """A parameter server goes on from its last checkpoint, or a later one."""
        if iteration < self._checkpoints.get(process, 0):
            self.violated(f"{process} has a checkpoint of {self._checkpoints[process]}, and goes on from {iteration}")

    def check_log(self, path: Path, iterations: int | None = None) -> None:
        """A training log has every iteration once, in order; all of them where training is over."""
        found = [entry["iteration"] for entry in training_log.read(path)] if path.exists() else []
        if found != list(range(len(found))) or (iterations is not None and len(found) != iterations):
            self.violated(f"the training log {path.name} has the iterations {found}, expected {iterations}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what the real classes do."""
        with ExitStack() as patches:

            def watch(kind: type, name: str, after: Callable[..., object]) -> None:
                original = getattr(kind, name)

                def watched(this: Any, *arguments: Any, **named: Any) -> Any:
                    result = original(this, *arguments, **named)
                    after(this, result, *arguments, **named)
                    return result

                patches.enter_context(patch.object(kind, name, watched))

            watch(ServedJob, "__init__", self._served)
            watch(ServedJob, "begin_session", self._session_began)
            watch(ServedJob, "apply_report", self._session_used)
            watch(ServedJob, "adopt", self._session_used)
            watch(ServedJob, "_require_deletable", self._deleted)
            watch(Jobs, "delete", self._deletion_requested)
            watch(SnapshotStore, "write", self._snapshot_written)
            watch(SnapshotStore, "delete", lambda store, _, name: self._snapshots.pop(name, None))
            watch(Jobs, "load", self._loaded)
            patches.enter_context(patch.object(ControllerService, "_accept_report", self._timed()))
            watch(CheckpointFolder, "write", self._checkpoint_written)
            watch(Rounds, "begin", self._round_began)
            watch(LogWriter, "write", self._logged)
            yield

    def _served(self, served: ServedJob, *_: object) -> None:
        self._learnt[served] = served.job.learnt_iterations

    def _session_began(self, served: ServedJob, session: str) -> None:
        self._sessions[served] = session

    def _session_used(self, served: ServedJob, _: object, session: str, *__: object) -> None:
        if session != self._sessions.get(served):
            self.violated(f"job {served.name} was changed by the session {session}, which was replaced")

    def _deleted(self, served: ServedJob, _: None, session: str | None, __: float) -> None:
        if session is not None and served in self._sessions:  # otherwise nobody has it since the controller restarted
            self._session_used(served, None, session)

    def _deletion_requested(self, _: Jobs, __: object, served: ServedJob, why: str, session: str | None = None) -> None:
        if why == "deleted" and session is None:
            self.violated(f"job {served.name} is deleted by a parameter server that does not say its session")
        if why != "deleted":  # nothing here is silent for days
            self.violated(f"job {served.name} was {why}")

    def _snapshot_written(self, _: SnapshotStore, __: None, name: str, data: bytes) -> None:
        self._saved_or_trouble[name] = asyncio.get_running_loop().time()
        self._snapshots[name] = msgpack.decode(data, type=_Snapshot).job.learnt.learnt_iterations

    def _timed(self) -> Callable[..., Any]:
        """A report is answered at once, whatever its controller's disk does."""
        accept = ControllerService._accept_report

        async def timed(service: ControllerService, *arguments: Any) -> object:
            process, time = _running(), asyncio.get_running_loop().time
            begin = time()
            try:
                return await accept(service, *arguments)
            finally:
                if time() - max(begin, process.resumed_at) > ANSWER_SECONDS and process.is_alive:
                    self.violated(f"a report has waited {time() - begin:g} s for its answer")

        return timed

    def _loaded(self, jobs: Jobs, _: None) -> None:
        """A job that was saved is there again, with all that it had learnt then."""
        found = {served.name: served.job.learnt_iterations for served in jobs.all()}
        for name, learnt in self._snapshots.items():
            if found.get(name, -1) < learnt:
                self.violated(f"the snapshot of {name} has {learnt} iterations, the restored job {found.get(name)}")

    def _checkpoint_written(self, _: CheckpointFolder, __: Path, iteration: int, state: Mapping[str, Any]) -> None:
        process = _running().name
        self._checkpoints[process] = iteration
        if state["workers"]:
            self._begun.add(process)

    def _round_began(self, _: Rounds, iteration: int, k: int, *__: object) -> None:
        process = _running().name
        live = self._live_workers(process)
        if not 1 <= k <= max(live, 1):
            self.violated(f"{process} begins iteration {iteration} with k = {k} of {live} live workers")

    def _logged(self, _: LogWriter, __: None, entry: Mapping[str, Any]) -> None:
        """An iteration has averaged k gradients of different workers, each once, and nothing else."""
        iteration, k = entry["iteration"], entry["k"]
        if entry["loss"] is not None and not 0 <= entry["loss"] <= 1:
            self.violated(f"iteration {iteration} has the loss {entry['loss']}")
        workers = [arrival["worker"] for arrival in entry["arrivals"] if arrival["iteration"] == iteration][:k]
        if len(set(workers)) != k:
            self.violated(f"iteration {iteration} has averaged {k} gradients, of workers {workers}")
            return
        values = [element(worker, iteration) for worker in workers]
        expected = ELEMENTS * sum(value**2 for value in values), ELEMENTS * (sum(values) / k) ** 2
        found = entry["sum_squared_norms"], entry["mean_squared_norm"]
        if not all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(expected, found, strict=True)):
            self.violated(f"the moments of iteration {iteration} are {found}, those of workers {workers} {expected}")


def _running() -> Process:
    process = PROCESS.get()
    assert process is not None
    return process


class _Learnt(Struct):
    learnt_iterations: int


class _Job(Struct):
    learnt: _Learnt


class _Snapshot(Struct):
    """As much of a snapshot as is looked at here."""

    job: _Job
