"""A training over real sockets is the same as one in a single process with the same gradients (paper, Section 2)."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dbw_ps.checkpoint import CheckpointFolder
from dbw_ps.client import Parameters
from dbw_ps.client import ParameterServer as Link
from dbw_ps.model import FlatModel
from dbw_ps.training_log import read
from dbw_runtime.channel import Connection
from tests import models
from tests.servers import PATIENCE, controller, parameter_server, wait_until
from tests.workers import Pace, gradient, working

ITERATIONS = 50


def begun(build: Callable[[], nn.Module]) -> FlatModel:
    """The model that a server begins with."""
    torch.manual_seed(0)
    return FlatModel(build())


def retrace(
    model: FlatModel,
    optimiser: torch.optim.Optimizer,
    used: dict[int, list[int]],
    step: Callable[[], object] = lambda: None,
    wire: Callable[[Tensor], Tensor] = lambda vector: vector,
) -> None:
    """Train in this process with the gradients that were used in each iteration."""
    trained = model.layout.parameter_elements
    for version in sorted(used):
        vectors = [gradient(model.vector, worker, version) for worker in used[version]]
        mean = torch.stack([torch.cat([wire(v[:trained]), v[trained:]]).double() for v in vectors]).mean(0).float()
        model.gradient.copy_(mean[:trained])
        model.buffers.copy_(mean[trained:])
        step()
        optimiser.step()


def saved(folder: Path) -> dict[str, Any]:
    """The newest checkpoint."""
    checkpoints = CheckpointFolder(folder)
    found = checkpoints.newest()
    checkpoints.close()
    assert found is not None
    return found[1]


def train(
    tmp_path: Path, model: str, *flags: str, workers: int = 3, iterations: int = ITERATIONS
) -> dict[int, list[int]]:
    """Train over real sockets; returns whose gradients were used in each iteration."""
    server_flags = (
        *("--model", f"tests.models:{model}", "--min-workers", str(workers), "--iterations", str(iterations)),
        *("--checkpoint-dir", str(tmp_path / "checkpoints"), "--training-log", str(tmp_path / "log"), *flags),
    )
    with parameter_server(*server_flags) as server, working(server.target, workers) as working_ones:
        for worker in working_ones:
            worker.join()
        assert server.wait() == 0
    used: dict[int, list[int]] = {version: [] for version in range(iterations)}
    for worker in working_ones:
        for version in worker.used:
            used[version].append(worker.number)
    assert [entry["iteration"] for entry in read(tmp_path / "log")] == list(range(iterations))
    assert [entry["k"] for entry in read(tmp_path / "log")] == [len(used[version]) for version in range(iterations)]
    return used


@pytest.mark.parametrize(("mode", "k"), [("push-wait", 2), ("push-interrupt", 2), ("pull", 2), ("pull", 1)])
def test_paper_parameters_are_those_of_a_single_process(tmp_path: Path, mode: str, k: int) -> None:
    used = train(tmp_path, "tiny", "--sync-mode", mode, "--policy", f"static:{k}")
    assert {len(workers) for workers in used.values()} == {k}
    model = begun(models.tiny)
    retrace(model, torch.optim.SGD(model.module.parameters(), lr=0.1), used)
    torch.testing.assert_close(saved(tmp_path / "checkpoints")["model"], dict(model.module.state_dict()))


def test_buffers_are_averaged_and_a_checkpoint_loads_in_plain_pytorch(tmp_path: Path) -> None:
    used = train(tmp_path, "normalised", "--policy", "sync")
    model = begun(models.normalised)
    retrace(model, torch.optim.SGD(model.module.parameters(), lr=0.1), used)
    plain = models.normalised()
    plain.load_state_dict(saved(tmp_path / "checkpoints")["model"])
    torch.testing.assert_close(dict(plain.state_dict()), dict(model.module.state_dict()))


def test_any_optimiser_with_a_schedule_and_clipping(tmp_path: Path) -> None:
    flags = ("--optimizer", "adamw:lr=0.01,weight_decay=0.1", "--schedule", "steplr:step_size=20", "--clip-norm", "2")
    used = train(tmp_path, "tiny", "--policy", "sync", *flags)
    model = begun(models.tiny)
    optimiser = torch.optim.AdamW(model.module.parameters(), lr=0.01, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, step_size=20)
    optimiser.register_step_post_hook(lambda *_: schedule.step())
    retrace(model, optimiser, used, step=lambda: nn.utils.clip_grad_norm_(model.module.parameters(), 2.0))
    torch.testing.assert_close(saved(tmp_path / "checkpoints")["model"], dict(model.module.state_dict()))
    rates = [entry["learning_rate"] for entry in read(tmp_path / "log")]
    assert rates == pytest.approx([0.01] * 20 + [0.001] * 20 + [0.0001] * 10)


def test_gradients_may_be_halved_on_the_wire(tmp_path: Path) -> None:
    used = train(tmp_path, "normalised", "--policy", "sync", "--gradient-type", "bfloat16", iterations=10)
    model = begun(models.normalised)
    optimiser = torch.optim.SGD(model.module.parameters(), lr=0.1)
    retrace(model, optimiser, used, wire=lambda vector: vector.bfloat16().float())
    state = {name: value for name, value in model.module.state_dict().items() if value.is_floating_point()}
    found = saved(tmp_path / "checkpoints")["model"]
    torch.testing.assert_close({name: found[name] for name in state}, state)


def test_large_gradients_come_in_pieces_and_may_be_added_in_double_precision(tmp_path: Path) -> None:
    used = train(tmp_path, "large", "--policy", "static:2", "--accumulate", "float64", iterations=10)
    model = begun(models.large)
    retrace(model, torch.optim.SGD(model.module.parameters(), lr=0.1), used)
    torch.testing.assert_close(saved(tmp_path / "checkpoints")["model"], dict(model.module.state_dict()))


def test_moments_in_the_log_are_those_of_the_gradients_that_were_used(tmp_path: Path) -> None:
    used = train(tmp_path, "tiny", "--policy", "static:2", iterations=10)
    model = begun(models.tiny)
    optimiser = torch.optim.SGD(model.module.parameters(), lr=0.1)
    for entry in read(tmp_path / "log"):
        workers = used[entry["iteration"]]
        vectors = torch.stack([gradient(model.vector, worker, entry["iteration"]) for worker in workers]).double()
        assert entry["sum_squared_norms"] == pytest.approx(float(vectors.square().sum()), rel=1e-6)
        assert entry["mean_squared_norm"] == pytest.approx(float(vectors.mean(0).square().sum()), rel=1e-5)
        retrace(model, optimiser, {entry["iteration"]: workers})


class Interruptible:
    """A worker that stops computing as soon as there are newer parameters, where the mode says so."""

    def __init__(self, target: str, id_: str, gate: threading.Event | None = None, pace: Pace | None = None) -> None:
        self._link, self._gate, self._pace = Link(Connection(target), id_), gate, pace or Pace()
        self.interrupted: list[int] = []
        self.late: list[int] = []
        self.seen: list[int] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with self._link as link:
            parameters: Parameters | None = None
            interrupts = None
            while (parameters := link.newer(parameters)) is not None:
                interrupts = parameters.session.sync_mode == 2  # SYNC_MODE_PUSH_INTERRUPT
                self.seen.append(parameters.version)
                self._parameters = parameters
                self._pace.wait(parameters.version)
                if self._gate is not None:
                    self._compute(link, parameters, interrupts)
                if interrupts and link.is_outdated(parameters):
                    self.interrupted.append(parameters.version)
                    link.complete(parameters, interrupted=True)
                elif link.is_outdated(parameters):
                    self.late.append(parameters.version)
                    link.complete(parameters)
                else:
                    link.push(parameters, torch.ones_like(parameters.vector), loss=1.0)

    def _compute(self, link: Link, parameters: Parameters, interrupts: bool) -> None:
        """Compute until the gate opens or, where that is the mode, newer parameters come."""
        assert self._gate is not None
        for _ in range(int(PATIENCE / 0.01)):
            if self._gate.wait(0.01) or (interrupts and link.is_outdated(parameters)):
                return
        raise AssertionError("neither happened")

    def knows(self, version: int) -> bool:
        """Whether it has parameters of this version, though it may not use them yet."""
        return self._link.is_outdated(replace(self._parameters, version=version - 1))

    def join(self) -> None:
        """Wait for the end of training."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("mode", ["push-wait", "push-interrupt", "pull"])
def test_paper_a_late_worker_goes_on_with_the_newest_parameters(mode: str) -> None:
    """Push & Interrupt stops it at once; the others let it finish, and no version in between is computed."""
    gate, pace, newest = threading.Event(), Pace(30), 30
    flags = ("--model", "tests.models:tiny", "--sync-mode", mode, "--policy", "static:1", "--min-workers", "2")
    with parameter_server(*flags, "--iterations", "60") as server:
        slow = Interruptible(server.target, "slow", gate)
        fast = Interruptible(server.target, "fast", pace=pace)  # which is not there while the slow one goes on
        wait_until(lambda: server.status().iteration == newest)
        if mode == "push-interrupt":
            wait_until(lambda: slow.seen[-1] == newest)
            assert len(slow.interrupted) > 0
            assert not slow.late
        else:
            # Who pulls does not know, and is told by the answer.
            wait_until(lambda: mode == "pull" or slow.knows(newest))
            gate.set()
            wait_until(lambda: len(slow.seen) > 1)
            assert slow.seen[:2] == [0, newest]
            assert slow.late[:1] == ([0] if mode == "push-wait" else [])
        pace.until(2**62)
        gate.set()
        slow.join()
        fast.join()


def test_the_controller_is_told_of_arrivals_late_ones_included() -> None:
    with controller() as deciding:
        patient = ("--decision-deadline", "60", "--decision-share", "1e9")  # waits for every decision
        flags = ("--controller", deciding.target, "--policy", "static:2", "--job", "told", *patient)
        server_flags = ("--model", "tests.models:tiny", "--min-workers", "3", "--max-seconds", "3600", *flags)
        with parameter_server(*server_flags) as server, working(server.target, 3) as workers:
            for worker in workers:
                worker.wait_for(30)
            assert server.stop() == 0
        metrics = dict(line.rsplit(" ", 1) for line in deciding.metrics().splitlines() if 'dbw_job="told"' in line)
    iterations = float(metrics['dbw_iterations_total{dbw_job="told"}'])
    assert iterations >= 29
    assert float(metrics['dbw_gradients_total{dbw_job="told",outcome="used"}']) == 2 * iterations
    assert float(metrics['dbw_gradients_total{dbw_job="told",outcome="late"}']) > 0
