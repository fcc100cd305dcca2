"""What goes wrong while clients work: the controller is killed, stopped or frozen, and its network misbehaves."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.history.operations import Answer, History, Kind, Operation
from tests.history.proxy import Direction, TcpProxy
from tests.servers import Controller, unsaved_iterations

NETWORK = ("stall", "stall up", "stall down", "black hole", "reset", "delay")
PROCESS = (Kind.KILL.value, Kind.STOP.value, "freeze")


class ControllerHost:
    """A controller that can be killed and comes back, on another port, where the proxies find it."""

    def __init__(
        self, program: type[Controller], folder: Path, save_iterations: int, proxies: Sequence[TcpProxy]
    ) -> None:
        self._program = program
        self._flags = ("--state-dir", str(folder), "--save-iterations", str(save_iterations), "--drain-seconds", "1")
        self._proxies = proxies

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        self.process = await asyncio.to_thread(self._started)
        for proxy in self._proxies:
            proxy.server_port = self.process.port

    def _started(self) -> Controller:
        controller = self._program(*self._flags)
        controller.wait_for_log("ready")
        return controller

    async def restart(self, kind: Kind, history: History) -> None:
        """End it in one of two ways, and start it again."""
        operation = history.invoke(Operation(kind, "", "nemesis"))
        if kind is Kind.KILL:
            operation.unsaved = unsaved_iterations(await asyncio.to_thread(self.process.metrics))
        await asyncio.to_thread(self.process.kill if kind is Kind.KILL else self.process.stop)
        history.answered(operation, Answer())
        await self.start()


class Nemesis:
    """Causes one fault after the other, of kinds that a seed chooses."""

    def __init__(self, host: ControllerHost, proxies: Sequence[TcpProxy], history: History, random: Random) -> None:
        self._host, self._proxies, self._history, self._random = host, proxies, history, random

    async def run(self) -> None:
        """Cause faults until cancelled; then let everything work again."""
        try:
            while True:
                await self._cause(self._random.choice([*NETWORK, *PROCESS]))
                await asyncio.sleep(self._random.choice([0.1, 0.5]))
        finally:
            self._host.process.process.send_signal(signal.SIGCONT)
            for proxy in self._proxies:
                proxy.flow()

    async def _cause(self, fault: str) -> None:
        self._history.nemesis[fault] += 1
        proxies = self._random.choice([self._proxies, [self._random.choice(self._proxies)]])
        seconds = self._random.choice([0.05, 0.5, 2.0]) * self._random.random()
        match fault:
            case Kind.KILL.value | Kind.STOP.value:
                await self._host.restart(Kind(fault), self._history)
            case "freeze":
                self._host.process.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(seconds)
                self._host.process.process.send_signal(signal.SIGCONT)
            case "reset":
                for proxy in proxies:
                    proxy.reset()
            case _:
                await self._spoil(fault, proxies, seconds)

    async def _spoil(self, fault: str, proxies: Sequence[TcpProxy], seconds: float) -> None:
        directions = {"stall up": [Direction.UP], "stall down": [Direction.DOWN]}.get(fault, list(Direction))
        for proxy in proxies:
            if fault == "delay":
                proxy.delay = seconds / 10
            else:
                proxy.stall(*directions)
        await asyncio.sleep(seconds)
        for proxy in proxies:
            if fault == "black hole":
                proxy.reset()
            proxy.flow()
