"""Services as processes of their own on this machine, none of which outlives us."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

PATIENCE = 120.0  # seconds for a service to get ready: a controller compiles its kernels once
FAREWELL = 5.0  # seconds to leave
LAST_LINES = 15
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ServiceFailedError(Exception):
    """A service has ended though it should not, or did not get ready; the text says which, and its last words."""


class Service:
    """One process, `python -m MODULE`, and the file that it logs to."""

    def __init__(self, name: str, module: str, flags: Sequence[str], log: Path) -> None:
        self.name, self._log = name, log
        command = [sys.executable, "-m", module, "--log-format", "json", *flags]
        with log.open("wb") as file:
            # Ctrl-C is for us: in a session of its own, the service ends when we tell it to.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )

    def wait_for(self, message: str) -> dict[str, Any]:
        """Wait for a line in its log; returns it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            ended = self._process.poll() is not None
            if (line := self._line(message)) is not None:
                return line
            if ended:
                raise self.failure(f"has ended with exit code {self._process.returncode}")
            time.sleep(0.05)
        raise self.failure(f"is not {message!r} after {PATIENCE:g} s")

    def is_over(self, after: str | None = None) -> bool:
        """Whether it has ended, after this line in its log if one is given; raises ServiceFailedError if it failed."""
        code = self._process.poll()
        if code is None:
            return False
        if code:
            how = f"was killed by signal {-code}" if code < 0 else f"has failed with exit code {code}"
            raise self.failure(how)
        if after is not None and self._line(after) is None:
            raise self.failure("has left too early")
        return True

    def terminate(self) -> None:
        """Tell it to leave."""
        self._process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait for its end, and kill it after a timeout."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _line(self, message: str) -> dict[str, Any] | None:
        """The first line with this message in its log."""
        for text in self._log.read_text("utf-8", "replace").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # what is not logged but printed
            if isinstance(line, dict) and line.get("message") == message:
                return line
        return None

    def failure(self, what: str) -> ServiceFailedError:
        """What went wrong, with its last words."""
        last = self._log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]
        words = "\n".join(f"    {line}" for line in last) or "    nothing"
        return ServiceFailedError(f"the {self.name} {what}. Its last words, in {self._log}:\n{words}")


class Services:
    """All that run at the moment. They log into a folder, and are gone afterwards, whatever happens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[Service] = []
        folder.mkdir(parents=True)

    def start(self, name: str, module: str, *flags: str) -> Service:
        """Start one."""
        with uninterrupted():  # or nobody would know of it
            service = Service(name, module, flags, self._folder / f"{name.replace(' ', '-')}.log")
            self._running.append(service)
        return service

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted():
            for service in self._running:
                service.terminate()
            deadline = time.monotonic() + FAREWELL
            for service in self._running:
                service.wait(max(deadline - time.monotonic(), 0.0))
            self._running.clear()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals wait for the end of the block. Processes that it starts have handlers of their own."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
