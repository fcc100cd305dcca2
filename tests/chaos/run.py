"""One run: bursts of faults, quiet times in which all trainings must go on, and an orderly end."""

import asyncio
import math
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.chaos.cluster import Cluster, Training
from tests.chaos.history import Event, History
from tests.chaos.nemesis import PAUSE, Fault, Nemesis
from tests.chaos.process import Supervised
from tests.chaos.server_watch import DISK_SECONDS, ControllerWatch, watch_health, watch_memory
from tests.chaos.training_watch import TrainingWatch

BEGIN_SECONDS = 120.0  # in which every training must begin
RECOVERY_SECONDS = 60.0  # in which every training must go on after the last fault
QUIET_SECONDS = 2.0  # after that, before the next ones
ROGUE_SECONDS = 5.0  # after a rogue has ended, its server may not yet have done so because of it
LAST_ITERATIONS = 20  # that trainings go on for at the end, where they end by themselves
END_SECONDS = 120.0  # in which everything must have ended then
TICK_SECONDS = 0.2


class Run:
    """Everything of one run, in a folder."""

    def __init__(self, folder: Path, seconds: float, rng: random.Random, faults: Sequence[Fault]) -> None:
        self._folder, self._seconds = folder, seconds
        self.history = History(folder / "chaos.log")
        self._cluster = Cluster(folder, rng)
        self._nemesis = Nemesis(self._cluster, self.history, rng, faults, seconds / 3)
        self._controller_watch = ControllerWatch(self._cluster.controller, self.history)
        self._watches = {training.name: TrainingWatch(training, self.history) for training in self._cluster.trainings}
        for process in self._cluster.processes():
            process.report = self.history.violated
        for host in self._cluster.hosts:
            host.process.excuses = partial(self._excuse, host.process)

    def _excuse(self, process: Supervised, code: int) -> str | None:
        """Why a server may have ended with an exit code that is not 0."""
        host = next(host for host in self._cluster.hosts if host.process is process)
        rogues = [training.garbage_until for training in self._cluster.trainings if training.server is host]
        excuse = None
        if code == 1 and host.disk.hurt_until > time.monotonic() - DISK_SECONDS:
            excuse = "its disk was full or hung"
        elif code == 1 and max(rogues, default=-math.inf) > time.monotonic() - ROGUE_SECONDS:
            excuse = "a rogue was perhaps its only worker"
        if excuse is not None:
            self.history.note(f"{host.name} has ended with {code}: {excuse}")
            self.history.counts[f"ends of {host.name} with {code}: {excuse}"] += 1
        return excuse

    async def whole(self) -> None:
        """From the first start to the last end."""
        async with asyncio.TaskGroup() as group:
            watching = [
                group.create_task(coroutine)
                for coroutine in (
                    *(watch.run() for watch in self._watches.values()),
                    *(watch_health(host, self.history) for host in self._cluster.hosts),
                    self._controller_watch.run(),
                    watch_memory(self._cluster, self.history),
                )
            ]
            running = group.create_task(self._cluster.run())
            if await self._all_go_on(BEGIN_SECONDS, "did not begin"):
                until = time.monotonic() + self._seconds
                while time.monotonic() < until and await self._burst():
                    pass
            await self._end()
            running.cancel()
            for task in watching:
                task.cancel()
        for watch in self._watches.values():
            watch.check_log(is_over=True)
            watch.check_parameters()
        for training in self._cluster.trainings:
            if training.log.exists():
                shutil.copy(training.log, self._folder / f"{training.name}.jsonl")

    async def _burst(self) -> bool:
        """Some faults, and the recovery from them; returns whether all trainings go on."""
        before = {name: watch.iteration for name, watch in self._watches.items()}
        for watch in self._watches.values():
            watch.progress.forget()
            watch.decisions.forget()
        events = await self._nemesis.burst()
        now = time.monotonic()
        ended = {name: max((e.ended for e in events if name in e.trainings), default=now) for name in self._watches}
        if not await self._all_go_on(RECOVERY_SECONDS, "stands still", ended):
            return False
        for name, watch in self._watches.items():
            touching = [event for event in events if name in event.trainings]
            self._judge_pauses(name, watch, touching)
            for event in touching:
                recovered_at = watch.progress.after(event.ended)
                assert recovered_at is not None
                if not any(other.began < recovered_at and other.ended > event.ended for other in touching):
                    self.history.recovered(event.label, recovered_at - event.ended)  # from this fault, and no other
                if event.fills_disk:
                    watch.disk_was_full(before[name])
            watch.check_log()
        await asyncio.sleep(QUIET_SECONDS)
        return True

    def _judge_pauses(self, name: str, watch: TrainingWatch, touching: Sequence[Event]) -> None:
        labels = ", ".join(event.label for event in touching) or "nothing that touched it"
        for what, seen, allowed in (
            ("an iteration that ended", watch.progress, max((event.pause for event in touching), default=PAUSE)),
            ("a decision", watch.decisions, math.inf if any(event.stops_decisions for event in touching) else PAUSE),
        ):
            pause = seen.longest_pause()
            self.history.note(f"{name} was without {what} for up to {pause:.1f} s")
            if pause > allowed:
                self.history.violated(f"{name} was without {what} for {pause:.0f} s, with {labels}")

    async def _all_go_on(self, seconds: float, problem: str, since: Mapping[str, float] | None = None) -> bool:
        """Wait until each training has ended an iteration whose k was decided; returns whether they do in time."""
        deadline = time.monotonic() + seconds
        after = since or dict.fromkeys(self._watches, time.monotonic())
        left = dict(after)
        while left and time.monotonic() < deadline:
            await asyncio.sleep(TICK_SECONDS)
            left = {name: at for name, at in left.items() if not self._goes_on(self._watches[name], at)}
        for name in left:
            self.history.violated(
                f"{name} {problem}: no iteration or no decision for {seconds:g} s, with nothing wrong"
            )
        return not left

    def _goes_on(self, watch: TrainingWatch, since: float) -> bool:
        return watch.progress.after(since) is not None and watch.decisions.after(since) is not None

    async def _end(self) -> None:
        """Let all trainings end: the first as told by SIGTERM, the others when they have done their iterations."""
        self._controller_watch.is_ending = True
        self.history.note("the end begins")
        first, *others = self._cluster.trainings
        for process in (first.server.process, *first.workers):
            process.is_last = True
            process.stop()
        await asyncio.gather(*(self._end_by_iterations(training) for training in others))
        processes = [*first.workers, first.server.process]
        processes += [process for training in others for process in (*training.workers, training.server.process)]
        await self._wait_for_ends(processes)
        self._cluster.controller.process.is_last = True
        self._cluster.controller.process.stop()
        await self._wait_for_ends([self._cluster.controller.process])

    async def _end_by_iterations(self, training: Training) -> None:
        server = training.server.process
        starts = server.starts
        server.flags += ["--iterations", str(self._watches[training.name].iteration + LAST_ITERATIONS)]
        server.stop()
        await server.started_after(starts)
        for process in (server, *training.workers):
            process.is_last = True

    async def _wait_for_ends(self, processes: Sequence[Supervised]) -> None:
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline and not all(process.is_over for process in processes):
            await asyncio.sleep(TICK_SECONDS)
        for process in processes:
            if not process.is_over:
                self.history.violated(f"{process.name} has not ended in {END_SECONDS:g} s")
                process.is_last = True
                process.kill()
