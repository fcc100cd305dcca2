"""The Python client against real controllers that are slow, killed, replaced or missing."""

import asyncio
import logging
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1.iteration_pb2 import (
    DECISION_REASON_BEST_RATE,
    DECISION_REASON_FIRST_ITERATION,
    DECISION_REASON_NOT_ENOUGH_DATA,
)
from dbw.v1.job_pb2 import JobSpec, Policy, StaticPolicy
from dbw_controller.client import EVERY_DECISION, AsyncDbwClient, DbwClient, TrainingJob
from dbw_controller.client.training import Training
from tests.proxy import Forward, LostConnection, proxied
from tests.servers import PATIENCE, Controller, controller, wait_until

# Waits for every decision.
PATIENT: Any = {"deadline": PATIENCE, "patience_share": EVERY_DECISION}
IMPATIENT: Any = {"deadline": 0.01}
STATIC = JobSpec(policy=Policy(static=StaticPolicy(k=2)))


def arrive(job: Training, workers: int = 4) -> dict[str, Any]:
    """All gradients of an iteration; returns what its end reports."""
    scale = random.Random(job.iteration).uniform(0.9, 1.1)
    for rank in range(workers):
        seconds = (0.1 + 0.01 * rank + (0.3 if rank == workers - 1 else 0.0)) * scale
        job.arrived(worker=rank, seconds=seconds)
    loss = 2.0 * 0.999**job.iteration
    return {"loss": loss, "learning_rate": 0.1, "mean_squared_norm": 2.0, "sum_squared_norms": 3.0 * job.k}


def train(job: TrainingJob, iterations: int) -> list[int]:
    return [job.end_iteration(**arrive(job)) for _ in range(iterations)]


def is_decided_for(job: TrainingJob) -> bool:
    """Go through an iteration; whether the next one has a decision of the controller."""
    train(job, 1)
    return not job.on_fallback


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def known_job(server: Controller, name: str) -> Any:
    with server.stub() as stub:
        return stub.GetJob(pb.GetJobRequest(job=name)).job


def names(server: Controller) -> list[str]:
    with server.stub() as stub:
        return [job.name for job in stub.ListJobs(pb.ListJobsRequest()).jobs]


def test_a_training_gets_decisions_and_its_job_ends_with_it(server: Controller) -> None:
    with DbwClient(server.target, **PATIENT).job("resnet", workers=4) as job:
        assert (job.k, job.iteration, job.on_fallback, job.problem) == (4, 0, False, None)
        train(job, 20)
        assert job.iteration == 20
        assert job.decision is not None
        assert (job.decision.reason, job.decision.k) == (DECISION_REASON_BEST_RATE, job.k)
        assert known_job(server, "resnet").learnt_iterations == 20
    assert names(server) == []


def test_an_asyncio_training_gets_the_same_decisions(server: Controller) -> None:
    async def run() -> list[int]:
        async with AsyncDbwClient(server.target, **PATIENT).job("async", workers=4) as job:
            assert not job.on_fallback
            return [await job.end_iteration(**arrive(job)) for _ in range(20)]

    with DbwClient(server.target, **PATIENT).job("sync", workers=4) as job:
        expected = train(job, 20)
    assert asyncio.run(run()) == expected
    assert names(server) == []


def test_a_job_is_kept_when_training_fails_and_goes_on_where_it_was(server: Controller) -> None:
    client = DbwClient(server.target, **PATIENT)
    with suppress(ZeroDivisionError), client.job("resnet", workers=4) as job:
        train(job, 5)
        raise ZeroDivisionError
    with client.job("resnet", workers=4, iteration=5) as job:
        train(job, 1)
        assert known_job(server, "resnet").learnt_iterations == 6


def test_a_job_is_kept_when_it_is_closed_before_the_block_ends(server: Controller) -> None:
    async def train_briefly() -> None:
        async with AsyncDbwClient(server.target, **PATIENT).job("closed-asyncio", workers=4) as job:
            await job.end_iteration(**arrive(job))
            await job.close()

    with DbwClient(server.target, **PATIENT).job("closed", workers=4) as job:
        train(job, 1)
        job.close()
    asyncio.run(train_briefly())
    with server.stub() as stub:
        for name in ("closed", "closed-asyncio"):
            assert stub.GetJob(pb.GetJobRequest(job=name)).job.learnt_iterations == 1


def test_late_arrivals_count_for_their_own_iteration(server: Controller) -> None:
    with DbwClient(server.target, **PATIENT).job("resnet", workers=4, spec=STATIC) as job:
        for _ in range(3):
            for rank in range(2):
                job.arrived(worker=rank, seconds=0.1)
            job.end_iteration(duration_seconds=0.1)
            job.arrived(worker=3, seconds=0.4, iteration=job.iteration - 1)
        job.arrived(worker=0, seconds=0.1)
        job.end_iteration()
        wait_until(lambda: 'dbw_gradients_total{dbw_job="resnet",outcome="late"} 3.0' in server.metrics())


def test_membership_goes_with_the_next_iteration(server: Controller) -> None:
    with DbwClient(server.target, **PATIENT).job("resnet", workers=[3, 5, 7, 9]) as job:
        job.set_workers([3, 5])
        assert job.k == 2
        job.end_iteration(duration_seconds=1.0)
        assert list(known_job(server, "resnet").membership.workers) == [3, 5]


def test_a_state_goes_into_a_checkpoint_and_back(server: Controller) -> None:
    client = DbwClient(server.target, **PATIENT)
    with client.job("teacher", workers=4) as job:
        train(job, 20)
        state = job.export_state()
    assert state is not None
    with client.job("pupil", workers=4) as job:
        assert job.import_state(state)
        assert known_job(server, "pupil").learnt_iterations == 20
        assert job.k == known_job(server, "pupil").decision.k
        assert not job.import_state(state[:-5])
        assert not job.import_state(b"nonsense")


def test_a_state_does_not_replace_one_that_was_learnt_from_more_iterations(server: Controller) -> None:
    with DbwClient(server.target, **PATIENT).job("resumed", workers=4) as job:
        train(job, 5)
        older = job.export_state()
        train(job, 5)
        newer = job.export_state()
        assert older is not None
        assert newer is not None
        for state in (older, newer):
            assert job.import_state(state)
            assert known_job(server, "resumed").learnt_iterations == 10
            assert job.k == known_job(server, "resumed").decision.k
        train(job, 1)
        assert known_job(server, "resumed").learnt_iterations == 11


def test_an_asyncio_training_exports_and_imports_as_well(server: Controller) -> None:
    async def run() -> None:
        async with AsyncDbwClient(server.target, **PATIENT).job("async", workers=4) as job:
            for _ in range(10):
                await job.end_iteration(**arrive(job))
            state = await job.export_state()
            assert state is not None
            assert await job.import_state(state)
            assert not await job.import_state(b"nonsense")

    asyncio.run(run())


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"two words", b"two\nlines"])
def test_a_token_file_that_cannot_be_used_means_fallback(server: Controller, tmp_path: Path, content: Any) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    with DbwClient(server.target, **PATIENT, token_file=token).job("resnet", workers=4) as job:
        assert train(job, 2) == [4, 4]
        assert str(token) in (job.problem or "")

    async def run() -> None:
        async with AsyncDbwClient(server.target, **PATIENT, token_file=token).job("resnet", workers=4) as job:
            assert await job.end_iteration(**arrive(job)) == 4

    asyncio.run(run())


@pytest.mark.parametrize(("fallback", "expected"), [("last", 2), ("all", 4)])
def test_without_a_controller_training_goes_on_with_a_k_of_its_own(fallback: Any, expected: int) -> None:
    with controller() as server:
        job = DbwClient(server.target, **PATIENT, fallback=fallback).job("resnet", workers=4, spec=STATIC)
        train(job, 5)
        assert job.k == 2
        server.kill()
    assert train(job, 5)[1:] == [expected] * 4
    assert job.on_fallback
    assert "UNAVAILABLE" in (job.problem or "")
    job.close(delete=True)


def test_a_controller_that_was_never_there_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with DbwClient(f"127.0.0.1:{free_port()}", **PATIENT).job("resnet", workers=4) as job:
        assert (job.k, job.on_fallback) == (4, True)
        assert train(job, 3) == [4, 4, 4]
        assert job.export_state() is None
        assert not job.import_state(b"")
    assert [r.getMessage() for r in caplog.records if "on fallback, k = 4" in r.getMessage()] != []
    assert all(record.job == "resnet" for record in caplog.records)  # type: ignore[attr-defined]


def test_a_controller_that_hangs_is_not_waited_for() -> None:
    with controller() as server:
        job = DbwClient(server.target, deadline=PATIENCE).job("resnet", workers=4, spec=STATIC)
        assert (job.k, job.on_fallback) == (2, False)
        server.process.send_signal(signal.SIGSTOP)
        assert train(job, 200) == [2] * 200  # of which none waits for the deadline
        assert job.decision is not None
        server.process.send_signal(signal.SIGCONT)
        began = job.iteration
        wait_until(lambda: train(job, 1) and job.decision and job.decision.iteration > began)
        wait_until(lambda: known_job(server, "resnet").learnt_iterations >= 200)
        job.close()


def test_a_restarted_controller_is_found_again_and_told_who_is_alive(tmp_path: Path) -> None:
    flags = ("--state-dir", str(tmp_path), "--save-iterations", "1", "--listen", f"127.0.0.1:{free_port()}")
    with controller(*flags) as server:
        job = DbwClient(server.target, **PATIENT).job("resnet", workers=4)
        train(job, 20)
        wait_until(lambda: server.unsaved_iterations("resnet") == 0)
        server.kill()
    train(job, 3)
    job.set_workers(3)
    with controller(*flags) as server:
        wait_until(partial(is_decided_for, job))
        seen = known_job(server, "resnet")
        assert seen.membership.live_workers == 3
        assert 20 <= seen.learnt_iterations <= job.iteration
        assert seen.decision.reason not in (DECISION_REASON_FIRST_ITERATION, DECISION_REASON_NOT_ENOUGH_DATA)
        job.close(delete=True)
        assert names(server) == []


@pytest.mark.parametrize("seed", range(2))
def test_a_training_survives_a_controller_that_is_killed_at_random_points(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    flags = ("--state-dir", str(tmp_path), "--save-iterations", "5", "--listen", f"127.0.0.1:{free_port()}")
    job: TrainingJob | None = None
    decided = 0
    for _ in range(3):
        with controller(*flags) as server:
            if job is None:
                job = DbwClient(server.target, **PATIENT).job("resnet", workers=4)
            training = job
            wait_until(partial(is_decided_for, training))
            for _ in range(rng.randrange(1, 40)):
                train(training, 1)
                decided += not training.on_fallback
            learnt, unsaved = known_job(server, "resnet").learnt_iterations, server.unsaved_iterations("resnet")
            server.process.kill()
            train(training, rng.randrange(1, 10))
            server.wait()
    assert job is not None
    job.close()
    with controller(*flags) as server:
        back = known_job(server, "resnet").learnt_iterations
    assert learnt - unsaved <= back <= learnt <= job.iteration, (
        "nothing counts twice, and no more is lost than was told"
    )
    assert decided > 0


def test_another_process_with_the_same_job_ends_the_decisions_of_the_first(server: Controller) -> None:
    client = DbwClient(server.target, **PATIENT)
    first = client.job("resnet", workers=4)
    train(first, 3)
    with client.job("resnet", workers=4) as second:
        assert train(first, 3)[-1] == first.k
        assert first.on_fallback
        assert first.replaced
        train(second, 3)
        first.close(delete=True)
        train(second, 3)
        assert not second.on_fallback, "the first one did not delete what is no longer its own"


def test_a_training_learns_at_once_that_it_was_replaced(server: Controller) -> None:
    client = DbwClient(server.target, deadline=PATIENCE)
    first = client.job("replaced", workers=4)
    train(first, 1)
    wait_until(lambda: known_job(server, "replaced").learnt_iterations == 1)
    with client.job("replaced", workers=4):
        wait_until(lambda: first.replaced)
        first.close(delete=True)
        assert "replaced" in names(server)


@pytest.mark.parametrize("delete", [False, True], ids=["kept", "deleted"])
def test_a_training_that_was_replaced_takes_its_job_back_when_the_other_one_has_gone(
    server: Controller, delete: bool, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"back-{delete}"
    first = DbwClient(server.target, **PATIENT, silent_job_seconds=0.1).job(name, workers=4)
    train(first, 3)
    with caplog.at_level(logging.WARNING, "dbw.client"):
        second = DbwClient(server.target, **PATIENT).job(name, workers=4)
        wait_until(lambda: first.replaced)
        train(second, 3)
        second.close(delete)
        wait_until(partial(is_decided_for, first))
    assert not first.replaced
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"the job {name} " in warning
    wait_until(lambda: train(first, 1) and known_job(server, name).decision.iteration == first.iteration)
    first.close(delete=True)
    assert name not in names(server)


def test_an_asyncio_training_takes_its_job_back_as_well(server: Controller) -> None:
    async def run() -> None:
        first = AsyncDbwClient(server.target, **PATIENT, silent_job_seconds=0.1).job("back", workers=4)
        await first.open()
        await first.end_iteration(**arrive(first))
        second = AsyncDbwClient(server.target, **PATIENT).job("back", workers=4)
        await second.open()
        async with asyncio.timeout(PATIENCE):
            while not first.replaced:
                await asyncio.sleep(0.01)
            await second.close()
            while first.replaced or first.on_fallback:
                await first.end_iteration(**arrive(first))
                await asyncio.sleep(0.01)
        await first.close(delete=True)

    asyncio.run(run())
    assert "back" not in names(server)


def answers_of_streams_are_lost(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
    """What a proxy does to a stream whose client learns nothing from it, as with a cable that was pulled."""
    if rpc == "Coordinate":
        for _ in requests:
            pass
    else:
        yield from forward(requests)


@pytest.mark.parametrize("knows", [True, False], ids=["knowing", "not-knowing"])
@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_training_that_was_replaced_does_not_delete_what_its_successor_has_learnt(
    server: Controller, kind: str, knows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def run(target: str) -> None:
        with DbwClient(target, **settings).job(name, workers=4) as job:
            train(job, 1)
            succeed()
            wait_until(lambda: job.replaced is knows)

    async def run_asyncio(target: str) -> None:
        async with AsyncDbwClient(target, **settings).job(name, workers=4) as job:
            await job.end_iteration(**arrive(job))
            await asyncio.to_thread(succeed)
            async with asyncio.timeout(PATIENCE):
                while job.replaced is not knows:
                    await asyncio.sleep(0.01)

    def succeed() -> None:
        with suppress(ZeroDivisionError), DbwClient(server.target, **PATIENT).job(name, workers=4) as successor:
            train(successor, 220)
            raise ZeroDivisionError

    name = f"replaced-{kind}-{knows}"
    settings = PATIENT if knows else IMPATIENT  # an answer that is lost is waited for
    with proxied(server.target, answers_of_streams_are_lost) as lossy:
        target = server.target if knows else lossy
        asyncio.run(run_asyncio(target)) if kind == "asyncio" else run(target)
    assert known_job(server, name).decision.iteration == 220
    assert known_job(server, name).learnt_iterations >= 220, "the first one's count, too, if they came"
    is_refused = any("cannot be deleted: ABORTED" in record.getMessage() for record in caplog.records)
    assert is_refused is not knows
    with server.stub() as stub:
        stub.DeleteJob(pb.DeleteJobRequest(job=name))


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_training_that_ends_while_it_attaches_again_leaves_no_job(server: Controller, kind: str) -> None:
    lost, name = LostConnection(), f"ended-{kind}"

    def run(target: str) -> None:
        job = DbwClient(target, **PATIENT).job(name, workers=4)
        train(job, 1)
        lost.is_answered.wait(PATIENCE)
        closing = threading.Thread(target=job.close, kwargs={"delete": True})
        closing.start()
        wait_until(job._closing.is_set)
        lost.may_come.set()
        closing.join()

    async def run_asyncio(target: str) -> None:
        job = AsyncDbwClient(target, **PATIENT).job(name, workers=4)
        await job.open()
        await job.end_iteration(**arrive(job))
        await asyncio.to_thread(lost.is_answered.wait, PATIENCE)
        closing = asyncio.ensure_future(job.close(delete=True))
        await asyncio.sleep(0)  # let it begin
        lost.may_come.set()
        await closing

    with proxied(server.target, lost) as target:
        if kind == "sync":
            run(target)
        else:
            asyncio.run(run_asyncio(target))
    assert name not in names(server)


def slow_to_delete(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
    """What a proxy does in front of a controller that takes longer to delete a job than decisions are waited for."""
    if rpc == "DeleteJob":
        time.sleep(10 * IMPATIENT["deadline"])
    yield from forward(requests)


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_slow_controller_deletes_the_job_of_a_training_that_is_over(
    server: Controller, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(target: str) -> None:
        async with AsyncDbwClient(target, **IMPATIENT).job(name, workers=4):
            await asyncio.to_thread(wait_until, lambda: name in names(server))

    name = f"slow-{kind}"
    with proxied(server.target, slow_to_delete) as target:
        if kind == "sync":
            with DbwClient(target, **IMPATIENT).job(name, workers=4):
                wait_until(lambda: name in names(server))
        else:
            asyncio.run(run(target))
    assert not any("cannot be deleted" in record.getMessage() for record in caplog.records)
    assert name not in names(server)


def test_an_asyncio_training_that_is_cancelled_while_it_closes_stays_cancelled(server: Controller) -> None:
    async def run() -> None:
        training = AsyncDbwClient(server.target, deadline=PATIENCE).job("cancelled", workers=4)
        await training.open()
        closing = asyncio.ensure_future(training.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await training._channel.close()

    asyncio.run(run())


def test_a_training_that_began_without_the_controller_does_not_go_on_with_an_older_one(tmp_path: Path) -> None:
    flags = ("--state-dir", str(tmp_path), "--listen", f"127.0.0.1:{free_port()}")
    with controller(*flags) as server:
        old = DbwClient(server.target, **PATIENT).job("resnet", workers=4)
        train(old, 30)
        old.close()
        server.stop()
    new = DbwClient(server.target, **PATIENT).job("resnet", workers=4)
    train(new, 3)
    with controller(*flags) as server:
        wait_until(partial(is_decided_for, new))

        def has_caught_up() -> bool:
            train(new, 1)
            return bool(known_job(server, "resnet").decision.iteration == new.iteration)

        wait_until(has_caught_up)
        assert new.iteration < 1000
        new.close(delete=True)


def test_requests_that_are_refused_do_not_end_the_decisions(
    server: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    with DbwClient(server.target, **PATIENT).job("resnet", workers=4, spec=STATIC) as job:
        with caplog.at_level(logging.ERROR, "dbw.client"):
            job.end_iteration(k=10**6, duration_seconds=1.0)
            assert job.on_fallback
        assert any("summary.k" in record.getMessage() for record in caplog.records)
        wait_until(partial(is_decided_for, job))


@pytest.mark.parametrize(
    "mistake",
    [
        lambda job: job.arrived(seconds=-1.0),
        lambda job: job.arrived(seconds=float("nan")),
        lambda job: job.arrived(seconds=1.0, iteration=99),
        lambda job: job.end_iteration(),
        lambda job: job.set_workers(-1),
        lambda job: job.set_workers([1, 1]),
        lambda job: job.end_iteration(k=0, duration_seconds=1.0),
        lambda job: job.end_iteration(duration_seconds=float("nan")),
    ],
)
def test_a_mistake_of_the_caller_is_an_error_at_once(server: Controller, mistake: Any) -> None:
    with DbwClient(server.target, **PATIENT).job("resnet", workers=4) as job:
        with pytest.raises(ValueError, match=r"must be|is needed"):
            mistake(job)
        train(job, 1)
        assert not job.on_fallback


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="deadline"):
        DbwClient("127.0.0.1:1", deadline=0.0)
    with pytest.raises(ValueError, match="both, or neither"):
        DbwClient("127.0.0.1:1", tls_cert="only.pem")
    with pytest.raises(ValueError, match="HOST:PORT"):
        DbwClient("controller")
    with pytest.raises(ValueError, match="name"):
        DbwClient("127.0.0.1:1").job("a/b", workers=1)
    with pytest.raises(ValueError, match="fallback"):
        DbwClient("127.0.0.1:1", fallback="none").job("resnet", workers=1)  # type: ignore[arg-type]
