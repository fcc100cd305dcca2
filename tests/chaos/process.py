"""A program under supervision: whatever ends it, it is started again with the same flags, as an orchestrator does."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.forks import Process

STOP_SECONDS = 60.0  # from SIGTERM to the end, whatever happens meanwhile that has an end itself
TICK_SECONDS = 0.1
BUGS = ("Traceback", "a bug: please report", "damaged")  # in what is logged


class Supervised:
    """One process after the other. `report` takes what must not happen."""

    def __init__(
        self, name: str, module: str, flags: Sequence[str], folder: Path, rng: random.Random, **environment: str
    ) -> None:
        self.name, self.module = name, module
        self.flags = list(flags)
        self._folder, self._random, self._environment = folder, rng, environment
        self.process: Process | None = None
        self.is_ready, self.is_paused = False, False
        self.changed_at = 0.0  # when it was started, paused, or told to go on
        self.starts = 0
        self.codes: list[int] = []  # with which it has ended
        self.report: Callable[[str], None] = print
        self.excuses: Callable[[int], str | None] = lambda code: None  # why an exit code is as it should be, if it is
        self.before_start: Callable[[], None] = lambda: None
        self.after_line: Callable[[Mapping[str, Any]], None] = lambda line: None
        self._stop_by: float | None = None  # when it must have ended
        self._is_killed, self._is_stopped, self.is_last = False, False, False
        self._start_at = 0.0
        self._log = folder / f"{name}.log"
        self._read_to = 0

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self.process is not None

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to end."""
        return self._is_killed or self._is_stopped

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.is_last and not self.is_running

    def start(self) -> None:
        """Start it now."""
        self.before_start()
        with self._log.open("ab") as file:
            arguments = [*self.flags, "--log-format", "json"]
            self.process = Process(self.module, arguments, self._environment, self._folder, stderr=file.fileno())
        self.is_ready = self.is_paused = self._is_killed = self._is_stopped = False
        self._stop_by, self.changed_at = None, time.monotonic()
        self.starts += 1

    async def supervise(self) -> None:
        """Start it again and again, and read what it logs, until it has ended for good."""
        while not self.is_over:
            if self.process is None and time.monotonic() >= self._start_at:
                self.start()
            await asyncio.sleep(TICK_SECONDS)
            self._read_log()
            if self.process is not None and (code := self.process.poll()) is not None:
                self._read_log()
                self._ended(code)
            elif self._stop_by is not None and time.monotonic() > self._stop_by and not self.is_paused:
                self.report(f"{self.name} has not ended {STOP_SECONDS:g} s after SIGTERM")
                self._stop_by = None
                self.kill()

    def kill(self) -> None:
        """Kill it. Where it hangs in a disk, it ends when that does."""
        self._is_killed = True
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """End it as an orchestrator would."""
        self._is_stopped = True
        self._stop_by = time.monotonic() + STOP_SECONDS
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        """Freeze it."""
        self.is_paused, self.changed_at = True, time.monotonic()
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        if self.is_paused:
            self.is_paused, self.changed_at = False, time.monotonic()
            if self._stop_by is not None:
                self._stop_by = time.monotonic() + STOP_SECONDS
            self._signal(signal.SIGCONT)

    def delay_start(self, seconds: float) -> None:
        """Start it no sooner than in this time, when it has ended."""
        self._start_at = time.monotonic() + seconds

    async def started_after(self, starts: int) -> None:
        """Wait until it was started more often than this."""
        while self.starts <= starts and not self.is_over:
            await asyncio.sleep(TICK_SECONDS)

    def memory(self) -> float | None:
        """How many MB it has for itself."""
        try:
            assert self.process is not None
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except (AssertionError, OSError):
            return None
        found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
        return float(found[0]) / 1024 if found else None

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def _ended(self, code: int) -> None:
        expected = (
            (self._is_killed and code == -signal.SIGKILL)
            or (self._is_stopped and code == 0)
            or (self._is_stopped and not self.is_ready and code == -signal.SIGTERM)  # it could not yet listen to it
            or (self.is_last and code == 0)
        )
        if not expected and self.excuses(code) is None:
            self.report(f"{self.name} has ended with {code}; its last line is {self._last_line()}")
        self.codes.append(code)
        self.process, self.is_ready, self._stop_by = None, False, None
        self._start_at = max(self._start_at, time.monotonic() + self._random.uniform(0.1, 1.0))

    def _read_log(self) -> None:
        with self._log.open("rb") as file:
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read_to += len(line)
                self._take_line(line)

    def _take_line(self, text: bytes) -> None:
        try:
            line = json.loads(text)
        except ValueError:
            line = {"message": text.decode(errors="replace").strip()}
        message, traceback = str(line.get("message")), str(line.get("traceback", ""))
        is_disk = traceback.splitlines()[-1:] and "OSError" in traceback.splitlines()[-1]
        if any(bug in message for bug in BUGS) or (traceback and not is_disk):
            self.report(f"{self.name} has logged: {message[:300]} {traceback[-300:]}")
        if message == "ready":
            self.is_ready, self.changed_at = True, time.monotonic()
        self.after_line(line)

    def _last_line(self) -> str:
        with self._log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4000))
            lines = file.read().decode(errors="replace").splitlines()
        return lines[-1][:500] if lines else "none"
