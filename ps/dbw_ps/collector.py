"""The gradients of the iteration under way: which of them count, their sum, and when it ends."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from dbw_ps.aggregate import Aggregate, Moments, WholeGradient
from dbw_ps.gradient import OutlierError
from dbw_ps.members import Member, Members
from dbw_ps.outliers import Outliers
from dbw_ps.rounds import Arrival, End, Fate, Rounds, Verdict

log = logging.getLogger(__name__)


class NoUsableGradientsError(Exception):
    """No worker sends a gradient that can be used; the text says what to do."""


class GradientCollector:
    """Takes in what happens to gradients, for one event loop. They are added up in a thread, while others come in."""

    def __init__(
        self,
        rounds: Rounds,
        members: Members,
        aggregate: Aggregate,
        outliers: Outliers,
        clock: Callable[[], float] = time.monotonic,
        alone_seconds: float = 60.0,  # how long outliers wait for other workers, which could say that they are right
    ) -> None:
        self._rounds, self._members, self._aggregate, self.now = rounds, members, aggregate, clock
        self._outliers, self._alone_seconds = outliers, alone_seconds
        self._alone_until: float | None = None
        self._losses: dict[int, float] = {}  # of this iteration, that workers have told
        # More threads than one would only take processors away from what receives gradients.
        self._adder = ThreadPoolExecutor(1, "sum", initializer=lambda: torch.set_num_threads(1))
        self._additions: list[asyncio.Future[None]] = []
        self._changed = asyncio.Event()  # by anything that may begin or end an iteration
        self.is_stopping = False
        self.iteration_over = asyncio.Event()  # another event for each iteration

    @property
    def live(self) -> list[int]:
        """The numbers of the workers that are alive, without those that are stalled."""
        return sorted(self._members.live)

    @property
    def stalled(self) -> int:
        """How many workers are stalled."""
        return len(self._members.stalled)

    def membership_changed(self, member: Member) -> None:
        """A worker has joined, or its session has ended."""
        (self._rounds.join if member.number in self._members.live else self._rounds.leave)(member.number)

    def wake(self) -> None:
        """Let whoever waits look again."""
        self._changed.set()

    def verdict(self, member: Member, version: int) -> Verdict:
        """What becomes of a gradient that arrives now; `use` it, or note that it is `late`, before anything else."""
        return self._rounds.verdict(member.number, version)

    def use(self, member: Member, gradient: WholeGradient) -> None:
        """Add a gradient that is complete. Raises OutlierError if its norm speaks against that."""
        norms = math.sqrt(gradient.squared_norm), math.sqrt(gradient.squared_buffer_norm)
        if problem := self._outliers.problem(member.number, *norms, self._rounds.was_refused(member.number)):
            raise OutlierError(problem)
        if gradient.header.HasField("loss"):
            self._losses[member.number] = gradient.header.loss
        self._rounds.record(member.number, gradient.header.version, Verdict.USED, self.now())
        member.used += 1
        loop = asyncio.get_running_loop()
        self._additions.append(loop.run_in_executor(self._adder, self._aggregate.add, gradient))
        self._changed.set()

    def late(self, member: Member, version: int) -> None:
        """Note a gradient that is too late to be used."""
        self._rounds.record(member.number, version, Verdict.LATE, self.now())
        member.late += 1

    def completed(self, member: Member, version: int, interrupted: bool) -> None:
        """A worker is done with a gradient that it does not send. One that was interrupted has not finished it."""
        if not interrupted or self.verdict(member, version) is Verdict.USED:  # else it is waited for
            self._rounds.complete(member.number, version, self.now())
        member.late += 1
        self._changed.set()

    def failed(self, member: Member, version: int, fate: Fate) -> None:
        """A gradient was rejected, or lost."""
        self._rounds.fail(member.number, version, fate)
        member.lost += 1
        self._changed.set()

    def begin(self, k: int, deadline_seconds: float | None) -> float:
        """Begin an iteration, whose parameters are being published; returns the time."""
        now = self.now()
        self._iteration = self._rounds.begin(k, now, deadline_seconds)
        self._alone_until = None
        return now

    async def wait_for_end(self, start_over: Callable[[int], object]) -> End | None:
        """Wait until the iteration is over; None if told to stop before. Tells which workers are to join again."""
        while (end := self._rounds.end(self.now(), self._members.live)) is None:
            if self.is_stopping:
                return None
            for worker in self._rounds.to_try_again(self._members.live):
                start_over(worker)
            wake_at = self._rounds.wake_at
            if self._rounds.is_blocked(self._members.live):
                wake_at = self._go_on_or_wait(start_over)
            await self.wait_for_change(wake_at)
        self.iteration_over.set()
        self.iteration_over = asyncio.Event()
        return end

    def _go_on_or_wait(self, start_over: Callable[[int], object]) -> float | None:
        """Do what can be done where no gradient of this iteration can be used; returns until when to wait, if not."""
        live, outliers = self._members.live, self._members.live & self._rounds.outliers
        believed = outliers if self._outliers.are_most(outliers) else frozenset[int]()
        if believed:  # something has changed for all, and they are right
            self._outliers.keep_only(believed)
        problem = f"none of the gradients of all {len(live)} workers for iteration {self._iteration} can be used"
        workers = self._rounds.start_over(live, believed)
        if not workers and outliers:
            return self._wait_for_others(sorted(outliers), problem)
        if not workers:
            advice = "lower the learning rate, or see what workers compute"
            raise NoUsableGradientsError(f"{problem}, perhaps because training diverges: {advice}")
        log.warning("%s: workers %s compute them again", problem, sorted(workers))
        for worker in workers:
            start_over(worker)
        return None

    def _wait_for_others(self, outliers: list[int], problem: str) -> float:
        """Give others time to come, where most are away, and those that are there send what is far too large."""
        why = f"{problem}: those of workers {outliers} are far larger than usual, and most of the others are away"
        if self._alone_until is None:
            self._alone_until = self.now() + self._alone_seconds
            log.warning("%s; waiting %g s for them", why, self._alone_seconds)
        if self.now() >= self._alone_until:
            advice = "see what these workers compute, start others, or give --max-norm-ratio 0 if they are right"
            raise NoUsableGradientsError(f"{why}: {advice}")
        return self._alone_until

    def take_losses(self) -> dict[int, float]:
        """What the workers whose gradients were used in this iteration say their losses are."""
        losses, self._losses = self._losses, {}
        return losses

    @property
    def usual_norms(self) -> dict[str, Any]:
        """What is known of the norms of gradients, to go on from later."""
        return self._outliers.state

    async def finish(self, compute: Executor) -> tuple[Moments, list[Arrival]]:
        """Average the gradients of the iteration; returns their moments, and what has arrived since the last one."""
        await asyncio.gather(*self._additions)
        self._additions.clear()
        moments = await asyncio.get_running_loop().run_in_executor(compute, self._aggregate.finish)
        return moments, self._rounds.take_arrivals()

    def stop(self) -> None:
        """Let everybody who waits return at once."""
        self.is_stopping = True
        self._changed.set()

    def close(self) -> None:
        """End the thread."""
        self._adder.shutdown()

    async def wait_for_change(self, until: float | None = None) -> None:
        """Wait until something happens, or until a time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if until is None else max(until - self.now(), 0.0)):
                await self._changed.wait()
        self._changed.clear()
