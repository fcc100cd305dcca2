"""A controller behind the network decides what the same policies decide in the laboratory's own process."""

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pytest
import torch
from msgspec.structs import replace

from dbw.v1.controller_pb2 import ListJobsRequest
from dbw_experiments.laboratory import training
from dbw_experiments.laboratory.learning import Learner, Learnt
from dbw_experiments.laboratory.runs import Outcome, Run
from dbw_experiments.laboratory.training import ControllerLostError, execute, over_network, train
from tests.servers import PATIENCE, Controller, controller

RUN = Run(
    model="mlp",
    dataset="digits",
    workers=6,
    batch=8,
    policy="dbw",
    rate=0.2,
    delay="shifted-exp:0.3,0.7 * slowdown:4,from=15,workers=0-1",
    seed=5,
    iterations=30,
    detail="curves",
)
VARIANTS = [
    replace(RUN, policy=policy, sync_mode=mode)
    for policy, mode in product(
        ("dbw", "dbw-plus", "b-dbw", "adasync", "static:3"), ("push-wait", "push-interrupt", "pull")
    )
] + [replace(RUN, policy=policy, membership="0@0-9, 4-5@6-12") for policy in ("dbw", "dbw-plus", "sync")]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def server() -> Iterator[Controller]:
    with controller() as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As `execute` has it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(run: Run, server: Controller) -> Outcome:
    async def within_patience() -> Outcome:
        async with asyncio.timeout(PATIENCE):
            return await train(run, Learner(run, CPU).step, over_network(run, server.target))

    return asyncio.run(within_patience())


def jobs(server: Controller) -> list[str]:
    with server.stub() as stub:
        return [job.name for job in stub.ListJobs(ListJobsRequest()).jobs]


class Disturbed(Learner):
    """A learner in whose sixth iteration something happens."""

    def __init__(self, run: Run, happens: Callable[[], object]) -> None:
        super().__init__(run, CPU)
        self.steps, self._happens = 0, happens

    def step(self, workers: Sequence[int]) -> Learnt:
        self.steps += 1
        if self.steps == 6:
            self._happens()
        return super().step(workers)


@pytest.mark.parametrize("run", VARIANTS, ids=[f"{run.policy} {run.sync_mode} {run.membership}" for run in VARIANTS])
def test_training_is_the_same_over_the_network(server: Controller, run: Run) -> None:
    remote, local = trained(run, server), execute([run])[0]
    for column in ("k", "seconds", "loss"):
        assert remote.columns[column] == local.columns[column]
        assert len(remote.columns[column]) == 30
    assert replace(remote, columns={}) == replace(local, columns={})
    if run.policy != "static:3":
        assert len(set(map(str, remote.columns["k"]))) > 1  # there was something to decide
    assert jobs(server) == []


def test_a_job_is_deleted_when_training_fails(server: Controller) -> None:
    def fail() -> None:
        assert len(jobs(server)) == 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(train(RUN, Disturbed(RUN, fail).step, over_network(RUN, server.target)))
    assert jobs(server) == []


@pytest.mark.parametrize("how", ["killed", "stopped", "silent"])
def test_training_does_not_go_on_without_its_controller(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Neither without a connection nor while nobody answers: k would not be what the policy decides."""
    monkeypatch.setattr(training, "PATIENCE", 1.0)
    with controller() as lost:
        happens: dict[str, Callable[[], object]] = {
            "killed": lost.kill,
            "stopped": lost.stop,
            "silent": lambda: lost.process.send_signal(signal.SIGSTOP),
        }
        learner = Disturbed(RUN, happens[how])

        async def within_patience() -> Outcome:
            async with asyncio.timeout(PATIENCE):
                return await train(RUN, learner.step, over_network(RUN, lost.target))

        with pytest.raises(ControllerLostError) as caught:
            asyncio.run(within_patience())
        # Where the controller is slow before that happens, it is lost already.
        assert str(caught.value).endswith(f" iteration {learner.steps}")
        assert learner.steps <= 6


def test_training_does_not_begin_without_a_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "PATIENCE", 1.0)
    with controller() as gone:
        gone.kill()
        with pytest.raises(ControllerLostError, match="iteration 0"):
            trained(RUN, gone)
