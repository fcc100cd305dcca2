"""Training loops, written as the guide says, whose workers hang."""

import asyncio
import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from dbw.v1.controller_pb2 import CoordinateRequest, CoordinateResponse
from dbw.v1.iteration_pb2 import END_CAUSE_DEADLINE, END_CAUSE_K_REACHED, IterationSummary
from dbw.v1.job_pb2 import DbwPlusPolicy, JobSpec, Policy
from dbw_controller.client import EVERY_DECISION, AsyncDbwClient, DbwClient
from tests.proxy import Forward, RefusalError, proxied
from tests.servers import PATIENCE, Controller

GUIDE = Path(__file__).resolve().parents[3] / "docs/integrating.md"
PATIENT: Any = {"deadline": PATIENCE, "patience_share": EVERY_DECISION}
WORKERS, ITERATIONS = 6, 20
HANG_FROM = 5  # all workers but one
MOMENTS: Any = {"loss": 1.0, "learning_rate": 0.1, "mean_squared_norm": 1.0, "sum_squared_norms": 8.0}


class Gradient(NamedTuple):
    """What a worker hands in."""

    worker: int
    iteration: int


class Arrived(NamedTuple):
    """And when it was there."""

    worker: int
    iteration: int
    seconds: float


class Work:
    """Workers that compute at once; from `HANG_FROM` on, all but the first hang until the test is over."""

    def __init__(self, put: Callable[[Gradient], object]) -> None:
        self._put = put

    def publish(self, iteration: int) -> None:
        """Let all workers compute that do not hang."""
        for worker in range(WORKERS if iteration < HANG_FROM else 1):
            self._put(Gradient(worker, iteration))


@contextmanager
def deciding(
    server: Controller, deadline: float | None, last: int = ITERATIONS
) -> Iterator[tuple[str, list[IterationSummary]]]:
    """A controller that asks for all gradients within a deadline, and is gone after some decisions; what it is told."""
    summaries: list[IterationSummary] = []

    def decide(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if len(summaries) > last:
            raise RefusalError(grpc.StatusCode.UNAVAILABLE, "gone")
        if rpc != "Coordinate":
            yield from forward(requests)
            return
        for data in requests:
            request = CoordinateRequest.FromString(data)
            summaries.append(request.summary)
            if len(summaries) > last:
                raise RefusalError(grpc.StatusCode.UNAVAILABLE, "gone")
            response = CoordinateResponse()
            response.decision.iteration, response.decision.k = request.summary.iteration + 1, WORKERS
            if deadline is not None:
                response.decision.deadline_seconds = deadline
            yield response.SerializeToString()

    with proxied(server.target, decide) as target:
        yield target, summaries


def train(job: Any, gradients: "queue.Queue[Gradient]", iterations: int = ITERATIONS) -> None:
    """The loop of the guide."""
    work = Work(gradients.put)
    for _ in range(iterations):
        work.publish(job.iteration)
        published = job.published()
        for gradient in job.gradients(gradients.get):
            seconds = max(job._now() - published, 0.0)
            job.arrived(worker=gradient.worker, seconds=seconds, iteration=gradient.iteration)
        job.end_iteration(**MOMENTS)


def assert_ended_at_deadlines(summaries: list[IterationSummary], deadline: float) -> None:
    assert [summary.iteration for summary in summaries] == list(range(ITERATIONS))
    for summary in summaries:
        if summary.iteration < HANG_FROM:
            assert (summary.k, summary.end_cause) == (WORKERS, END_CAUSE_K_REACHED)
        else:
            assert (summary.k, summary.end_cause) == (1, END_CAUSE_DEADLINE)
            assert summary.duration_seconds >= deadline
        assert summary.HasField("published_seconds")


def within_patience(run: Callable[[], None]) -> None:
    """Run what may hang if it is wrong."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs"
    assert failures == []


def test_a_training_goes_on_while_five_of_six_workers_hang(server: Controller) -> None:
    with deciding(server, 0.05) as (target, summaries), DbwClient(target, **PATIENT).job("hang", WORKERS) as job:
        within_patience(lambda: train(job, queue.Queue()))
        assert job.iteration == ITERATIONS
        assert_ended_at_deadlines(summaries, 0.05)


def test_a_training_goes_on_while_workers_hang_and_the_controller_is_gone(server: Controller) -> None:
    with deciding(server, 0.05, HANG_FROM) as (target, _), DbwClient(target, **PATIENT).job("gone", WORKERS) as job:
        within_patience(lambda: train(job, queue.Queue()))
        assert (job.iteration, job.k, job.on_fallback) == (ITERATIONS, WORKERS, True)
        assert job.deadline_seconds == 0.05


def test_a_deadline_for_fewer_gradients_does_not_stay_without_a_controller(server: Controller) -> None:
    with deciding(server, 0.05, 1) as (target, _):
        job = DbwClient(target, **PATIENT, fallback="all").job("gone", WORKERS)
        job.end_iteration(duration_seconds=1.0)
        job.set_workers(WORKERS + 1)
        assert job.deadline_seconds == 0.05
        job.end_iteration(duration_seconds=1.0)
        job.published()
        job.arrived(0.1)
        assert (job.on_fallback, job.k) == (True, WORKERS + 1)
        assert job.deadline_seconds is None
        job.close()


def test_a_training_with_the_default_policy_goes_on_while_five_of_six_workers_hang(server: Controller) -> None:
    """The controller's own decisions, with its own deadlines."""
    spec = JobSpec(policy=Policy(dbw_plus=DbwPlusPolicy()), k_min=WORKERS)
    with DbwClient(server.target, **PATIENT).job("hang", WORKERS, spec) as job:
        within_patience(lambda: train(job, queue.Queue()))
        assert (job.iteration, job.k) == (ITERATIONS, WORKERS)


def test_an_asyncio_training_goes_on_while_five_of_six_workers_hang(server: Controller) -> None:
    async def run(target: str) -> None:
        gradients: asyncio.Queue[Gradient] = asyncio.Queue()
        work = Work(gradients.put_nowait)
        async with AsyncDbwClient(target, **PATIENT).job("hang", WORKERS) as job:
            for _ in range(ITERATIONS):
                work.publish(job.iteration)
                published = job.published()
                async for gradient in job.gradients(gradients.get):
                    seconds = max(asyncio.get_running_loop().time() - published, 0.0)
                    job.arrived(worker=gradient.worker, seconds=seconds, iteration=gradient.iteration)
                await job.end_iteration(**MOMENTS)

    with deciding(server, 0.05) as (target, summaries):
        within_patience(lambda: asyncio.run(run(target)))
        assert_ended_at_deadlines(summaries, 0.05)


def wait_of_the_guide() -> Callable[[Any, Callable[..., list[Arrived]]], None]:
    """How the guide waits where several gradients come at once."""
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if "def wait_for_gradients" in block)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - our own guide
    wait: Callable[..., None] = names["wait_for_gradients"]
    return wait


def test_a_training_with_a_wait_of_its_own_goes_on_while_five_of_six_workers_hang(server: Controller) -> None:
    def train_with_own_wait(job: Any, gradients: "queue.Queue[Gradient]") -> None:
        work, wait = Work(gradients.put), wait_of_the_guide()
        for _ in range(ITERATIONS):
            work.publish(job.iteration)
            published = job.published()

            def arrived(timeout: float, published: float = published) -> list[Arrived]:
                try:
                    gradient = gradients.get(timeout=timeout)
                except queue.Empty:
                    return []
                return [Arrived(*gradient, max(job._now() - published, 0.0))]

            wait(job, arrived)
            job.end_iteration(**MOMENTS)

    with deciding(server, 0.05) as (target, summaries), DbwClient(target, **PATIENT).job("hang", WORKERS) as job:
        within_patience(lambda: train_with_own_wait(job, queue.Queue()))
        assert_ended_at_deadlines(summaries, 0.05)


def test_a_wait_of_its_own_does_not_wait_for_workers_that_are_lost_meanwhile(server: Controller) -> None:
    with deciding(server, None) as (target, summaries), DbwClient(target, **PATIENT).job("lost", WORKERS) as job:
        gradients: queue.Queue[Arrived] = queue.Queue()
        gradients.put(Arrived(0, 0, 0.1))

        def arrived(timeout: float) -> list[Arrived]:
            if not gradients.empty():
                return [gradients.get()]
            threading.Thread(target=job.set_workers, args=([0],)).start()
            try:
                return [gradients.get(timeout=timeout)]
            except queue.Empty:
                return []

        def wait() -> None:
            job.published()
            wait_of_the_guide()(job, arrived)
            job.end_iteration()

        within_patience(wait)
    assert [(summary.k, summary.end_cause) for summary in summaries] == [(1, END_CAUSE_K_REACHED)]


@pytest.mark.parametrize("nothing", [queue.Empty(), TimeoutError(), None], ids=repr)
def test_where_nothing_arrives_in_time_a_get_may_raise_or_return_nothing(
    server: Controller, nothing: Exception | None
) -> None:
    with deciding(server, 0.0) as (target, _), DbwClient(target, **PATIENT).job("nothing", WORKERS) as job:
        job.end_iteration(duration_seconds=1.0)
        gradients = [Gradient(0, 1)]

        def get(timeout: float) -> Gradient | None:
            assert timeout >= 0
            if gradients:
                return gradients.pop()
            if nothing is not None:
                raise nothing
            return None

        job.published()
        for gradient in job.gradients(get):
            job.arrived(worker=gradient.worker, seconds=0.1)
        assert job.missing == WORKERS - 1
        job.end_iteration()


def test_what_has_arrived_at_the_deadline_counts_though_nobody_has_looked_yet(server: Controller) -> None:
    with deciding(server, 0.0) as (target, summaries), DbwClient(target, **PATIENT).job("busy", WORKERS) as job:
        job.end_iteration(duration_seconds=1.0)
        gradients: queue.Queue[int] = queue.Queue()
        for worker in range(3):
            gradients.put(worker)
        job.published()
        for worker in job.gradients(gradients.get):
            job.arrived(worker=worker, seconds=0.1)
        job.end_iteration()
    assert (summaries[-1].k, summaries[-1].end_cause) == (3, END_CAUSE_DEADLINE)


def test_workers_that_are_lost_meanwhile_are_not_waited_for(server: Controller) -> None:
    with deciding(server, None) as (target, summaries), DbwClient(target, **PATIENT).job("lost", WORKERS) as job:
        gradients: queue.Queue[int] = queue.Queue()
        gradients.put(0)

        def wait() -> None:
            job.published()
            for worker in job.gradients(gradients.get):
                job.arrived(worker=worker, seconds=0.1)
                threading.Thread(target=job.set_workers, args=([0],)).start()
            job.end_iteration()

        within_patience(wait)
    assert [(summary.k, summary.end_cause) for summary in summaries] == [(1, END_CAUSE_K_REACHED)]


def test_a_loop_that_does_not_say_when_parameters_are_published_is_told_so(server: Controller) -> None:
    with DbwClient(server.target, **PATIENT).job("resnet", WORKERS) as job:
        with pytest.raises(RuntimeError, match="call `published`"):
            next(job.gradients(queue.Queue().get))
        job.published()
        job.end_iteration(k=1, duration_seconds=1.0)
        with pytest.raises(RuntimeError, match="iteration 1 has no beginning"):
            next(job.gradients(queue.Queue().get))


def test_a_summary_that_is_refused_can_be_told_again(server: Controller) -> None:
    with deciding(server, None) as (target, summaries), DbwClient(target, **PATIENT).job("resnet", WORKERS) as job:
        job.published()
        with pytest.raises(ValueError, match="at least 1"):
            job.end_iteration()
        job.arrived(worker=0, seconds=0.1)
        job.end_iteration()
    assert summaries[0].k == 1
    assert summaries[0].HasField("published_seconds")
