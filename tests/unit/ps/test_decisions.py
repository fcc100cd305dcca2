"""Policies as options name them, and the controller inside a parameter server."""

import asyncio

import pytest

from dbw_controller.client.conversation import Conversation
from dbw_controller.core.policies import AdaSync, BlindDbw, Dbw, Policy, Static, Sync
from dbw_controller.core.spec import SyncMode
from dbw_controller.named_policies import policy_from
from dbw_ps.decisions import spec_of
from dbw_ps.embedded import EmbeddedTrainingJob
from dbw_runtime.configuration import WrongValueError


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("dbw", Dbw()),
        ("dbw:loss_increase_factor=1.05", Dbw(1.05)),
        ("static:8", Static(8)),
        ("static:k=3", Static(3)),
        ("adasync:2", AdaSync(2)),
        ("b-dbw", BlindDbw()),
        ("sync", Sync()),
    ],
)
def test_a_policy_is_named_with_its_parameters(text: str, policy: Policy) -> None:
    assert policy_from(text) == policy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "best",
        "static",
        "static:",
        "static:many",
        "static:0",
        "dbw:x=1",
        "sync:3",
        "static:8.5",
        "static:8,",
        "static:k=3,k=4",
    ],
)
def test_a_policy_that_does_not_exist_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(WrongValueError, match=r"policy is .* one of adasync, b-dbw, dbw, dbw-plus, static, sync"):
        policy_from(text)


def test_without_a_policy_the_controller_s_default_holds() -> None:
    assert not spec_of(None, SyncMode.PULL).HasField("policy")
    assert spec_of("static:8", SyncMode.PULL).policy.static.k == 8


def embedded(policy: str = "b-dbw", iteration: int = 0) -> EmbeddedTrainingJob:
    spec = spec_of(policy, SyncMode.PUSH_WAIT)
    return EmbeddedTrainingJob(Conversation("job", [0, 1, 2, 3], spec, iteration, "last"))


async def train(job: EmbeddedTrainingJob, iterations: int) -> list[int]:
    chosen = []
    for _ in range(iterations):
        for rank, worker in enumerate((0, 1, 2, 3)):
            job.arrived(1.0 if rank < 3 else 10.0, worker)
        chosen.append(
            await job.end_iteration(loss=1.0, learning_rate=0.1, mean_squared_norm=1.0, sum_squared_norms=8.0)
        )
    return chosen


def test_an_embedded_job_leaves_out_stragglers() -> None:
    async def scenario() -> None:
        job = embedded()
        await job.open()
        assert (job.k, job.on_fallback) == (4, False)
        assert (await train(job, 20))[-1] == 3

    asyncio.run(scenario())


def test_an_embedded_job_goes_on_with_what_another_has_learnt() -> None:
    async def scenario() -> None:
        first, second = embedded(), embedded(iteration=20)
        await first.open()
        await train(first, 20)
        state = await first.export_state()
        assert state is not None
        await second.open()
        assert second.k == 4
        assert await second.import_state(state)
        assert second.k == first.k == 3

    asyncio.run(scenario())


def test_a_damaged_state_is_not_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        job = embedded()
        await job.open()
        assert not await job.import_state(b"\xff\xff")
        state = await job.export_state()
        assert state is not None
        assert not await job.import_state(state[:-1])
        assert job.k == 4

    asyncio.run(scenario())
    assert caplog.text.count("the state cannot be imported") == 2


def test_workers_that_go_are_not_waited_for() -> None:
    async def scenario() -> None:
        job = embedded("static:3")
        await job.open()
        job.set_workers([0, 1])
        assert job.k == 2
        job.set_workers([0, 1, 2, 3])
        assert (await train(job, 1)) == [3]

    asyncio.run(scenario())
