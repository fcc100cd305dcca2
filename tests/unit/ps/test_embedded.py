"""The controller inside a parameter server decides as one behind the network does."""

import asyncio
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from dbw.v1.controller_pb2 import CreateJobResponse, ExportJobStateResponse
from dbw.v1.iteration_pb2 import EndCause
from dbw.v1.job_pb2 import Job as JobMessage
from dbw_controller.client.conversation import Conversation
from dbw_controller.client.settings import join_state, whole_state
from dbw_controller.core.decision import Decision
from dbw_controller.core.job import Job
from dbw_controller.core.policies import DEFAULT, create_policy
from dbw_controller.core.reports import Report
from dbw_controller.core.spec import SyncMode
from dbw_controller.wire import messages
from dbw_controller.wire.state import export_state, import_state
from dbw_experiments.laboratory.cluster import Cluster, Iteration
from dbw_experiments.laboratory.membership import parse_membership
from dbw_ps.aggregate import Moments
from dbw_ps.decider import FinishedIteration, Source
from dbw_ps.decisions import spec_message_of, spec_of
from dbw_ps.embedded import EmbeddedDecider
from dbw_ps.rounds import Arrival, Cause, End
from dbw_worker.delays import parse_delay

LIVE = [0, 1, 2, 3]


class ThroughMessages:
    """A job in this process that is reported to, and that answers, in the messages of the contract."""

    def __init__(self, policy: str, mode: SyncMode, workers: Sequence[int], iteration: int = 0) -> None:
        self._conversation = Conversation("job", workers, spec_message_of(policy, mode), iteration, "all")
        request = self._conversation.create_request()
        spec = messages.spec_from(request.spec, create_policy(DEFAULT))
        self.job = Job(spec, messages.membership_from(request.membership), request.iteration)
        decision = messages.decision_message(self.job.decision(), include_estimates=False)
        self._conversation.created(CreateJobResponse(job=JobMessage(decision=decision)), 0.0)
        self._conversation.begin_iteration(0.0)

    @property
    def k(self) -> int:
        return self._conversation.k

    @property
    def deadline_seconds(self) -> float | None:
        decision = self._conversation.decision
        assert decision is not None
        return decision.deadline_seconds if decision.HasField("deadline_seconds") else None

    def set_workers(self, workers: Sequence[int]) -> None:
        self._conversation.set_workers(workers)

    def end_iteration(self, finished: FinishedIteration) -> None:
        for iteration, worker, seconds in finished.arrivals:
            self._conversation.arrived(seconds, worker, iteration)
        summary = self._conversation.summary(
            k=finished.end.k,
            duration_seconds=finished.end.seconds,
            end_cause=EndCause.Value(f"END_CAUSE_{finished.end.cause.name}"),
            published_seconds=finished.published,
            lost_gradients=finished.end.lost,
            learning_rate=finished.learning_rate,
            effective_learning_rate=finished.effective_learning_rate,
            **finished.moments._asdict(),
        )
        request = self._conversation.end_iteration(summary, 0.0)
        assert request is not None
        decision = self.job.report(messages.report_from(request))
        assert decision is not None
        self.job.catch_up()
        self._conversation.decided(messages.decision_message(decision, include_estimates=False), 0.0)
        self._conversation.begin_iteration(0.0)

    def export_state(self) -> bytes:
        header, data = export_state("job", self.job)
        return join_state([ExportJobStateResponse(header=header, data=data)])

    def import_state(self, state: bytes) -> None:
        whole = whole_state(state)
        decision = import_state(self.job, whole.header, whole.data)
        self._conversation.imported(messages.decision_message(decision, include_estimates=False))


def reports_to(job: Job, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """All that a job is told, in a form that can be compared."""
    reports: list[tuple[object, ...]] = []
    report_to = job.report

    def report(told: Report) -> Decision | None:
        batches = [
            (batch.iteration, batch.preceding, batch.seconds.tobytes(), batch.workers and [*batch.workers])
            for batch in told.arrivals
        ]
        reports.append((batches, repr(told.summary), told.membership))
        return report_to(told)

    monkeypatch.setattr(job, "report", report)
    return reports


def finished(iteration: Iteration) -> FinishedIteration:
    """What a model might have learnt in an iteration; now and then some of it is not known, or not finite."""
    number, k = iteration.end.iteration, iteration.end.k
    random = np.random.default_rng(number)
    norm, variance, loss, effective, within = (float(x) for x in random.exponential(size=5))
    moments = Moments(
        mean_squared_norm=float("nan") if number % 19 == 7 else norm,
        sum_squared_norms=k * norm + (k - 1) * variance,
        within_worker_variance=within if number % 3 else None,
        degrees_of_freedom=k if number % 3 else 0,
        loss=None if number % 11 == 5 else loss,
    )
    rate = effective if number % 5 else None
    return FinishedIteration(iteration.end, moments, iteration.arrivals, iteration.published, 0.1, rate)


POLICIES = ["dbw", "b-dbw", "dbw-plus", "dbw-plus:deadlines=0", "adasync:2", "static:3", "sync"]


@pytest.mark.parametrize(("policy", "mode"), list(product(POLICIES, SyncMode)))
def test_reports_and_decisions_are_bit_for_bit_those_through_messages(
    policy: str, mode: SyncMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers come and go, arrivals are late, an earlier state is imported, and nothing differs at any time."""
    changes = parse_membership("0-1@0-3, 2@5-9, 0-4@12-13, 4@15", 6)
    cluster = Cluster(6, parse_delay("exp:1 * factors:1,1,1,1,3,9"), 0, mode, changes)

    async def scenario() -> None:
        direct = EmbeddedDecider("job", spec_of(policy, mode), cluster.live, 0)
        other = ThroughMessages(policy, mode, cluster.live)
        reports, others = reports_to(direct.job, monkeypatch), reports_to(other.job, monkeypatch)
        state = None
        for number in range(80):
            assert (direct.k, direct.deadline_seconds) == (other.k, other.deadline_seconds)
            estimates, expected = (
                messages.decision_message(job.decision(), include_estimates=True) for job in (direct.job, other.job)
            )
            assert estimates.SerializeToString() == expected.SerializeToString()
            iteration = cluster.iterate(direct.k, direct.deadline_seconds)
            all_come_back = number != 50
            for live in ([], cluster.live if all_come_back else []):
                direct.set_workers(live)
                other.set_workers(live)
                assert direct.k == other.k
            await direct.end_iteration(finished(iteration))
            other.end_iteration(finished(iteration))
            assert reports.pop() == others.pop()
            await asyncio.sleep(0)  # for what is done after a decision
            if number == 20:
                state = await direct.export_state()
                assert state == other.export_state()
            if number == 40:
                assert state is not None
                direct.set_workers([0])
                other.set_workers([0])
                assert await direct.import_state(state)
                other.import_state(state)
        assert await direct.export_state() == other.export_state()

    asyncio.run(scenario())


def embedded(policy: str = "b-dbw", iteration: int = 0) -> EmbeddedDecider:
    return EmbeddedDecider("job", spec_of(policy, SyncMode.PUSH_WAIT), LIVE, iteration)


async def train(decider: EmbeddedDecider, iterations: int) -> list[int]:
    """Let all gradients count, though that of worker 3 is late; returns the k that are chosen."""
    chosen = []
    for _ in range(iterations):
        number = decider.job.iteration
        arrivals = [Arrival(number, worker, 10.0 if worker == 3 else 1.0) for worker in LIVE]
        end = End(number, 4, Cause.K_REACHED, 10.0, 0)
        await decider.end_iteration(FinishedIteration(end, Moments(1.0, 8.0, None, 0, 1.0), arrivals, 0.0, 0.1, None))
        chosen.append(decider.k)
    return chosen


def test_an_embedded_job_leaves_out_stragglers() -> None:
    async def scenario() -> None:
        decider = embedded()
        await decider.open()
        assert (decider.k, decider.source) == (4, Source.EMBEDDED)
        assert (await train(decider, 20))[-1] == 3

    asyncio.run(scenario())


def test_an_embedded_job_goes_on_with_what_another_has_learnt() -> None:
    async def scenario() -> None:
        first, second = embedded(), embedded(iteration=20)
        await train(first, 20)
        state = await first.export_state()
        assert state is not None
        assert second.k == 4
        assert await second.import_state(state)
        assert second.k == first.k == 3

    asyncio.run(scenario())


def test_a_damaged_state_is_not_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        decider = embedded()
        assert not await decider.import_state(b"\xff\xff")
        state = await decider.export_state()
        assert state is not None
        assert not await decider.import_state(state[:-1])
        assert decider.k == 4

    asyncio.run(scenario())
    assert caplog.text.count("the state cannot be imported") == 2


def test_workers_that_go_are_not_waited_for() -> None:
    async def scenario() -> None:
        decider = embedded("static:3")
        decider.set_workers([0, 1])
        assert decider.k == 2
        decider.set_workers(LIVE)
        assert (await train(decider, 1)) == [3]

    asyncio.run(scenario())
