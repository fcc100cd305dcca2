"""An asyncio event loop on a virtual clock, shared by simulated processes that can be paused and killed.

Everything that happens is one queue of handles, ordered by time. A handle belongs to the process whose code scheduled
it, which its context tells. Work for threads is done in one step, some time later. So a run depends on its seed only.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

THREAD_SECONDS = (0.0, 0.002)  # that work in a thread takes, at least and at most


class Process:
    """A simulated process: what its code has scheduled runs only while it is neither paused nor killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive, self.is_paused = True, False
        self.held: list[asyncio.Handle] = []  # while it is paused
        self.disk_hangs_until = 0.0
        self.disk_is_full = False
        self.resumed_at = -inf  # when it was last paused until

    @property
    def is_running(self) -> bool:
        """Whether it executes code."""
        return self.is_alive and not self.is_paused


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class DiskHangsError(BaseException):
    """What a thread does with a disk takes until then. Not an Exception, because real code never sees it."""

    def __init__(self, until: float) -> None:
        super().__init__(until)
        self.until = until


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop. `after_event` is called when a handle has run, with the process that it belongs to."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._now = 0.0
        self._queue: list[tuple[float, int, asyncio.Handle]] = []
        self._count = 0
        self._tasks: set[asyncio.Task[Any]] = set()  # so that those of killed processes are not finalised too early
        self._work: dict[Executor, deque[asyncio.Handle]] = {}  # of executors with one thread
        self.in_thread = False  # whether what runs is a thread's work
        self._dropped: list[asyncio.Handle] = []  # of processes that were killed
        self._paused: dict[Process, None] = {}  # all that ever were
        self._buries = False  # whether dead processes may run, to end their tasks
        self.events = 0
        self.problems: list[str] = []  # errors that nobody caught

    def time(self) -> float:
        """Seconds since the simulation began."""
        return self._now

    # Scheduling

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        """Run something next."""
        return self._push(self._now, asyncio.Handle(callback, args, self, context))

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        """Run something at a time."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        return self._push(max(when, self._now), handle)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        """Run something after some seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _push(self, when: float, handle: asyncio.Handle) -> asyncio.Handle:
        self._count += 1
        heappush(self._queue, (when, self._count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: cancelled handles are passed over."""

    def create_future(self) -> "asyncio.Future[Any]":
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> "asyncio.Task[Any]":
        """Run a coroutine, as a part of the process that asks for it."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn(self, process: Process | None, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine as a part of a process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(coroutine, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """Do something as a thread would: all at once, but later, and in turn where the executor has one thread."""
        future, context = self.create_future(), contextvars.copy_context()
        lane = None if executor is None else self._work.setdefault(executor, deque())

        def finish() -> None:
            if lane is not None:
                lane.popleft()
                if lane:
                    self._push(self._now + self._random.uniform(*THREAD_SECONDS), lane[0])

        def work() -> None:
            self.in_thread = True
            try:
                result = func(*args)
            except DiskHangsError as error:
                self._push(error.until, handle)
                return
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)
            finally:
                self.in_thread = False
            finish()

        handle = asyncio.Handle(work, (), self, context)
        if lane is not None:
            lane.append(handle)
        if lane is None or len(lane) == 1:
            self._push(self._now + self._random.uniform(*THREAD_SECONDS), handle)
        return future

    # Running

    def run(self, until: "asyncio.Future[Any]", after_event: Callable[[], object]) -> None:
        """Run until a future is done. Nothing left to run is a deadlock of the simulation itself."""
        asyncio._set_running_loop(self)
        try:
            while not until.done():
                when, _, handle = heappop(self._queue)
                if handle.cancelled():
                    continue
                self._now = max(self._now, when)
                process: Process | None = handle._context.get(PROCESS)  # type: ignore[attr-defined]
                if process is not None and not self._buries:
                    if not process.is_alive:
                        self._dropped.append(handle)
                        continue
                    if process.is_paused:
                        process.held.append(handle)
                        self._paused[process] = None
                        continue
                self.events += 1
                handle._run()
                after_event()
        finally:
            asyncio._set_running_loop(None)

    def resume(self, process: Process) -> None:
        """Let a paused process go on."""
        process.is_paused, process.resumed_at = False, self._now
        held, process.held = process.held, []
        for handle in held:
            self._push(self._now, handle)

    def bury(self) -> None:
        """End all tasks, also those of killed processes, at the end of the simulation."""
        self._buries, self.problems = True, []

        async def end_all() -> None:
            mine = asyncio.current_task()
            for _ in range(100):
                left = [task for task in self._tasks if task is not mine and not task.done()]
                if not left:
                    return
                for task in left:
                    task.cancel()
                for handle in self._dropped:  # without which some tasks would never learn that they are cancelled
                    self._push(self._now, handle)
                self._dropped.clear()
                for process in self._paused:
                    self.resume(process)
                await asyncio.sleep(0.1)

        self.run(self.spawn(None, end_all()), lambda: None)
        self._queue.clear()

    # What asyncio asks of a loop

    def get_debug(self) -> bool:
        """Never: that is slow."""
        return False

    def is_running(self) -> bool:
        """Whether it runs, as far as asyncio needs to know."""
        return True

    def is_closed(self) -> bool:
        """Never."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Take note of an error that nobody caught."""
        if not self._buries:
            self.problems.append(f"{context.get('message')}: {context.get('exception')!r}")


async def first(*awaitables: Awaitable[Any]) -> None:
    """Wait until one of these is done, and cancel the others."""
    futures = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in futures:
            future.cancel()
